"""SyntaxGym: accuracy on its test suites."""
