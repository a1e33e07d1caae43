"""What checks annotations in the tests: beartype, for which an int is a float, as for Python."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
