"""Programs compiled for TPUs and GPUs that are not there, in the environment of `nox -s accelerators`."""
