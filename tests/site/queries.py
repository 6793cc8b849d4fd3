"""What users type into the search, and the pages of which one must be among the first hits."""

QUERIES: dict[str, tuple[str, ...]] = {
    # The learning rate
    "learning rate schedule": ("schedules", "api/schedules"),
    "warmup cosine": ("schedules", "api/schedules"),
    "learning rate on plateau": ("recipes", "changing_hyperparameters", "monitoring"),
    "change learning rate": ("changing_hyperparameters", "overview"),
    "learning rate per layer": ("recipes", "parameter_groups"),
    "layer-wise learning rate decay": ("recipes", "parameter_groups"),
    "muP": ("recipes", "parameter_groups"),
    "parameter groups": ("recipes", "parameter_groups"),
    "hyperparameter sweep": ("overview", "getting_started"),
    "vmap": ("overview", "getting_started"),
    # Gradients
    "gradient accumulation": ("recipes", "microbatching"),
    "gradient clipping": ("overview", "api/transforms"),
    "per-example gradients": ("per_example_gradients",),
    "differential privacy": ("per_example_gradients", "api/optimizers/dpsgd"),
    # Parameters
    "EMA": ("recipes", "weight_averaging"),
    "weight averaging": ("weight_averaging",),
    "mixed precision": ("recipes", "overview"),
    "master weights": ("recipes", "overview"),
    "weight decay mask": ("overview", "coming_from_optax"),
    "freeze layers": ("recipes", "parameter_groups"),
    "LoRA": ("recipes", "parameter_groups", "frameworks"),
    # A run
    "logging": ("recipes", "monitoring"),
    "wandb": ("recipes", "monitoring"),
    "tensorboard": ("recipes", "monitoring"),
    "NaN gradients": ("monitoring",),
    "checkpoint orbax": ("checkpoints", "notebooks/checkpoints", "api/checkpoint"),
    "resume training": ("recipes", "checkpoints", "notebooks/checkpoints"),
    "state memory": ("overview", "choosing_an_optimizer"),
    # Optimizers
    "which optimizer": ("choosing_an_optimizer",),
    "AdamW": ("api/optimizers/adamw",),
    "Muon": ("api/optimizers/muon", "choosing_an_optimizer"),
    "L-BFGS": ("line_searches", "api/optimizers/lbfgs"),
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
