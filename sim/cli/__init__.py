"""The command line ``rondo``: one verb a file."""
