"""The words of torch, Keras, optax and their users for arguments, for the messages about wrong ones."""

# By the field that they may mean. A word may mean several fields: the first ones that a class has are suggested.
WORDS = {
    "learning_rate": "lr alpha eta step_size stepsize rate learning_rate_fn learning_rate_schedule lr_schedule",
    "b1": "beta1 beta_1 beta momentum",
    "b2": "beta2 beta_2 rho alpha",
    "b3": "beta3 beta_3",
    "eps": "epsilon adam_epsilon",
    "momentum": "beta b1 beta1 beta_1 mu",
    "decay": "rho alpha beta beta2 momentum decay_rate smoothing",
    "decay_rate": "gamma decay",
    "weight_decay": "wd decay l2 weight_decay_rate decoupled_weight_decay lambda_ weight_lambda",
    "mask": "weight_decay_mask wd_mask decay_mask exclude exclude_from_weight_decay no_decay",
    "weight_decay_mask": "mask wd_mask decay_mask exclude exclude_from_weight_decay no_decay",
    "every_k": "k every_k_schedule n every steps accumulation_steps accumulate_steps gradient_accumulation_steps "
    "accumulate_grad_batches",
    "warmup_steps": "warmup num_warmup_steps n_warmup warmup_iters",
    "decay_steps": "T_max t_max total_steps num_steps total_iters max_steps steps num_training_steps",
    "transition_steps": "T_max t_max total_steps num_steps total_iters max_steps steps num_training_steps decay_steps "
    "step_size",
    "init_value": "init_lr initial_learning_rate init start start_value base_lr initial_value learning_rate lr value",
    "peak_value": "peak_lr max_lr learning_rate lr peak base_lr init_value",
    "end_value": "end_lr eta_min min_lr final_lr end final_value min_value",
    "max_norm": "max_grad_norm clip_norm clipnorm global_clipnorm norm threshold clip",
    "max_delta": "value clip_value clipvalue delta",
    "factor": "gamma decay_rate",
    "sync_period": "k",
    "slow_step_size": "alpha",
    "start": "update_after_step start_step start_iter swa_start begin",
    "every": "k n every_k update_every interval period frequency",
    "window": "k n window_size num_checkpoints",
    "boundaries_and_scales": "milestones boundaries",
    "inner": "optimizer opt tx base inner_optimizer base_optimizer",
    "transforms": "groups param_groups optimizers",
    "labels": "param_labels",
}
PAIRS = {"betas": ("b1", "b2"), "moments": ("b1", "b2")}

# What other libraries call the parameters, which their optimizers are constructed with.
PARAMETERS = ("params", "parameters", "model", "var_list", "model_parameters")
