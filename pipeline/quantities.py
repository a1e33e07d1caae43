"""Numbers of bytes and of things in words."""

MIB, GIB = 1 << 20, 1 << 30
_UNITS = ("KiB", "MiB", "GiB")


def in_words(num_bytes: float) -> str:
    """Three digits in the largest unit up to GiB of which there is at least one: 1.25 GiB, 3 MiB.

    Args:
        num_bytes: at least 0.
    """
    if num_bytes < 1024:
        return f"{num_bytes:.0f} bytes"
    size, unit = num_bytes / 1024, 0
    # What would be rounded to 1024 is one of the next unit.
    while size >= 1023.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    number = f"{size:.{digits}f}"
    return f"{number.rstrip('0').rstrip('.') if digits else number} {_UNITS[unit]}"


def counted(number: int, thing: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
