"""What users type into the search, and the pages of which one must be among the first hits."""

QUERIES: dict[str, tuple[str, ...]] = {
    # The learning rate
    "learning rate schedule": ("schedules", "api/schedules"),
    "warmup cosine": ("schedules", "api/schedules"),
    "learning rate on plateau": ("changing_hyperparameters", "monitoring"),
    "change learning rate": ("changing_hyperparameters", "overview"),
    "learning rate per layer": ("parameter_groups",),
    "layer-wise learning rate decay": ("parameter_groups",),
    "muP": ("parameter_groups",),
    "parameter groups": ("parameter_groups",),
    "hyperparameter sweep": ("overview", "getting_started"),
    "vmap": ("overview", "getting_started"),
    # Gradients
    "gradient accumulation": ("microbatching",),
    "gradient clipping": ("overview", "api/transforms"),
    "per-example gradients": ("per_example_gradients",),
    "differential privacy": ("per_example_gradients", "api/optimizers"),
    # Parameters
    "EMA": ("weight_averaging",),
    "weight averaging": ("weight_averaging",),
    "mixed precision": ("overview",),
    "master weights": ("overview",),
    "weight decay mask": ("overview", "coming_from_optax"),
    "freeze layers": ("parameter_groups",),
    "LoRA": ("parameter_groups", "frameworks"),
    # A run
    "logging": ("monitoring",),
    "wandb": ("monitoring",),
    "tensorboard": ("monitoring",),
    "NaN gradients": ("monitoring",),
    "checkpoint orbax": ("checkpoints", "notebooks/checkpoints", "api/checkpoint"),
    "resume training": ("checkpoints", "notebooks/checkpoints"),
    "state memory": ("overview", "choosing_an_optimizer"),
    # Optimizers
    "which optimizer": ("choosing_an_optimizer",),
    "AdamW": ("api/optimizers", "api/optimizers/adamw"),
    "Muon": ("api/optimizers/muon", "api/optimizers", "choosing_an_optimizer"),
    "L-BFGS": ("line_searches", "api/optimizers"),
    "SAM": ("weight_averaging", "api/containers"),
    "schedule-free": ("weight_averaging", "api/containers"),
    "custom optimizer": ("write_your_own",),
    # Libraries
    "coming from optax": ("coming_from_optax",),
    "PyTorch": ("checkpoints", "coming_from_optax"),
    "NNX": ("frameworks", "notebooks/training_with_nnx", "api/nnx"),
    "Linen": ("frameworks",),
    "sharding": ("frameworks",),
}
