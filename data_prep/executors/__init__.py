"""Where tasks run: in this process, in several, over MPI."""
