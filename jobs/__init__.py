"""Jobs that users deploy: rules as pure modules, each with a thin module that adapts them to eos."""
