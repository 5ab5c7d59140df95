"""The subcommands of ``memprof``, a module each; ``memprof/cli.py`` lists them."""
