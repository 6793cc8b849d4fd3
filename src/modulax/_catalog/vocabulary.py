"""The words of torch, Keras, optax and their users for arguments, for the messages about wrong ones."""

# By the field that they may mean. A word may mean several fields: the first ones that a class has are suggested.
WORDS = {
    "learning_rate": "lr alpha eta step_size stepsize rate learning_rate_fn learning_rate_schedule lr_schedule",
    "b1": "beta1 beta_1 beta momentum",
    "b2": "beta2 beta_2",
    "b3": "beta3 beta_3",
    "mu": "exp_avg m momentum momentum_buffer first_moment",
    "nu": "exp_avg_sq v square_avg second_moment",
    "trace": "momentum_buffer momentum mu exp_avg",
    "step": "t iteration iterations num_steps global_step",
    "beta": "momentum mu b1 beta1 beta_1",
    "frequency": "freq every interval",
    "precondition_frequency": "update_freq update_frequency precondition_every preconditioning_compute_steps",
    "memory_size": "history_size max_history m",
    "mu_dtype": "momentum_dtype moment_dtype m_dtype exp_avg_dtype accumulator_dtype",
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
    "parts": "transforms steps optimizers",
    "patterns": "rules mapping",
    "diagonal": "memory_save_mode",
}
# Fields whose words they don't mean beside one of these: the `beta` of FTRL is no momentum.
NOT_BESIDE = {"beta": "alpha l1"}
# What a word at the beginning of a name is called here: `precond_freq` means `precondition_frequency`.
PREFIXES = {"adamw": "adam", "precond": "precondition", "preconditioner": "precond"}
SEVERAL = {"betas": ("b1", "b2", "b3"), "moments": ("b1", "b2"), "nus": ("nu1", "nu2")}

# What other libraries call the parameters, which their optimizers are constructed with.
PARAMETERS = ("params", "parameters", "model", "var_list", "model_parameters")

# What to write in place of an argument that the optimizers of other libraries take, and a note after ` # `. `{call}` is
# the optimizer with the other arguments, `{name}` its class, `{rate}` its learning rate, `{value}` what was given.
ARGUMENTS = {
    "Chain(AddDecayedWeights({value}), {call}) # This adds the decay to the gradient, as in torch; `AdamW` and others "
    "decay apart from it.": "weight_decay wd l2 weight_decay_rate",
    "Chain(ClipByGlobalNorm({value}), {call})": "clipnorm global_clipnorm max_grad_norm clip_norm max_norm grad_clip "
    "gradient_clip_val clip_grad_norm",
    "Chain(Clip({value}), {call})": "clipvalue clip_value clip_grad_value",
    "ParamEMA({call}, decay=0.999)": "use_ema ema_momentum ema_decay ema",
    "MultiSteps({call}, every_k={value})": "gradient_accumulation_steps accumulation_steps accumulate_steps "
    "accumulate_grad_batches",
    "LossScaling({call})": "loss_scale_factor loss_scale dynamic_loss_scale",
    "Chain(Scale(-1.0), {call}) # This goes up the gradient.": "maximize",
    "AMSGrad({rate}) # With decoupled weight decay, write "
    "`Chain(ScaleByAMSGrad(), AddDecayedWeights(1e-2), ScaleByLearningRate(1e-3))`.": "amsgrad",
    "{call} # A step is one compiled and differentiable program.": "foreach fused capturable differentiable "
    "jit_compile",
    "{name}(schedules.WarmupCosineDecay(0.0, 1e-3, 100, 1000)) # A schedule stands in place of a number.": "scheduler "
    "lr_scheduler lr_schedule schedule warmup_steps num_warmup_steps",
    "MasterWeights({call})": "master_weights master_dtype use_master_weights",
    "LowBit({call}) # The second moment is float32; this stores both in 8 bits.": "nu_dtype second_moment_dtype",
}

_STEP = "Compute the gradients with `jax.grad`, and write `params, state = optimizer.step(grads, state, params)`."
_SAVED = (
    "The state is apart from the optimizer: `state = optimizer.init(params)`. Save it with "
    "`modulax.checkpoint.save(path, state)`, or take a flat dict, `modulax.checkpoint.state_dict(state)`."
)
_LOADED = (
    "The state is apart from the optimizer: `state = modulax.checkpoint.load_state_dict(state, flat)` puts a flat dict "
    "into it."
)
_CALLED = "A schedule is a function of the step: `schedule(step)` is its value, and an optimizer evaluates it."
_UPDATE = "Write `optimizer.update(model, grads)`: gradients are results of `nnx.grad`, and nothing keeps them."

# What torch, Keras, optax and Flax have on an optimizer, a state and a schedule: what to write here, and their words.
ATTRIBUTES = {
    "optimizer": {
        "Gradients are results of `jax.grad`, and nothing keeps them that would have to be reset: write "
        "`params, state = optimizer.step(grads, state, params)`.": "zero_grad clear_grad clear_gradients",
        _STEP: "minimize apply_gradients compute_gradients apply get_gradients backward apply_grads",
        'Write `modulax.groups(optimizer, {"*.bias": {"weight_decay": 0.0}})` for other hyperparameters in a group of '
        "parameters.": "param_groups add_param_group exclude_from_weight_decay",
        _SAVED: "state_dict get_weights save save_own_variables",
        _LOADED: "load_state_dict set_weights load load_own_variables",
        'The state is apart from the optimizer: `state = optimizer.init(params)`, and `modulax.tree.get(state, "mu")` '
        "reads a value in it.": "state opt_state variables inner_states slots iterations build",
        "Write `optimizer.hyperparameters()` to read them, and `optimizer.replace(learning_rate=1e-4)` for an "
        "optimizer with another value.": "_replace defaults hyperparams hparams hyperparameter set_lr assign set",
        "Write `modulax.to_config(optimizer)`, and `modulax.from_config(config)` for the way back.": "get_config "
        "from_config config serialize to_dict to_json from_dict",
        "Write `Chain(optimizer, part)`, or of a chain, `Chain(*chain, part)`.": "append extend insert add prepend",
        'Write `optimizer.metrics(state)["learning_rate"]`.': "get_last_lr get_lr current_lr",
        "The state lies where the parameters are: write `params = jax.device_put(params)`, with a device or a "
        "sharding, before `optimizer.init(params)`.": "to cuda cpu",
        "Write `optimizer.eval_params(state, params)` for the parameters to evaluate.": "train eval swap_weights "
        "finalize_variable_values averaged_params ema_params",
    },
    "state": {
        "Hyperparameters are in the optimizer, and not in the state: write `optimizer.hyperparameters(state)` to read "
        "them, and `optimizer.replace(learning_rate=1e-4)`.": "hyperparams hyperparams_states hyperparameters "
        "learning_rate lr replace param_groups",
        "Write `modulax.tree.set(state, mu=...)`.": "_replace",
        _SAVED: "state_dict save items keys values",
        _LOADED: "load_state_dict load",
        _STEP: "apply_gradients minimize update zero_grad",
    },
    "module": {
        _STEP: "minimize minimise minimizer",
        "Write `jax.tree.map(function, tree)`.": "map treemap",
        "Write `flax.training.early_stopping.EarlyStopping(patience=3)`, which decides by the losses.": "earlystopping",
        'Write `thawed = modulax.groups(optimizer, {"head.*": {}})`, with the pattern of what was trained, and '
        "`state, _ = modulax.checkpoint.carry(thawed, params, frozen, state)`.": "thaw unfreeze",
    },
    "schedule": {
        _CALLED: "step get_lr get_last_lr lr last_epoch base_lrs state_dict load_state_dict update init optimizer",
        "Write `modulax.to_config(optimizer)` for the optimizer that has the schedule.": "get_config from_config",
    },
    "nnx": {
        _UPDATE: "zero_grad minimize apply_gradients apply apply_grads backward",
        "Write `optimizer.hyperparameters.learning_rate[...] = 1e-4`: each hyperparameter is a variable.": "replace "
        "param_groups hyperparams defaults set_lr",
        "`optimizer.transform` is the transform with the current values of the hyperparameters.": "tx optimizer opt",
        "The constructor makes the state, `optimizer.state`, of the variables of the model.": "init",
        "Write `nnx.state(optimizer)` for all of its variables.": "state_dict get_weights variables",
        "Write `nnx.update(optimizer, state)` to put variables into it.": "load_state_dict set_weights",
        'Write `optimizer.metrics()["learning_rate"]`.': "get_last_lr get_lr",
        "Write `modulax.to_config(optimizer.transform)`.": "get_config config",
    },
}

_AVERAGE = " # `eval_params(state, params)` then returns the average. `modulax.Ema` averages the updates."

# Optimizers, schedules and tools of other libraries in the spelling of `plain`, and how they are written here, with a
# note after ` # `.
ELSEWHERE = {
    "Chain(AdamW(1e-3), ReduceOnPlateau())": "reducelronplateau plateau",
    "LowBit(AdamW(1e-3))": "adam8bit adamw8bit pagedadamw pagedadam pagedadamw8bit adam4bit adamw4bit lion8bit",
    "ScheduleFreeAdamW(1e-3)": "adamwschedulefree schedulefreeadam schedulefreeadamwreference",
    "ScheduleFreeSGD(0.1)": "sgdschedulefree",
    "ScheduleFree(RAdam(1e-3), 1e-3)": "radamschedulefree",
    "Shampoo(1e-3)": "distributedshampoo",
    "Kron(3e-4)": "psgd psgdkron",
    "clip_query_key": "muonclip qkclip",
    "CautiousAdamW(1e-3)": "cadamw",
    "MARS(3e-3)": "marsadamw",
    "EShampoo(1e-3)": "eigenvaluecorrectedshampoo",
    "GPAAdamW(1e-3)": "gpa",
    "Chain(GrokFast(), AdamW(1e-3))": "grokadamw gradfilterema gradfilterma grokfastema grokfastadamw",
    "CautiousLion(1e-4)": "clion",
    "AdamW(1e-3)": "fusedadam fusedadamw bertadam openaiadam decoupledadamw adambert",
    "SGD(0.1)": "gradientdescent gradientdescentoptimizer",
    "SGD(0.1, momentum=0.9)": "momentum momentumsgd sgdm heavyball fusedsgd",
    "SGD(0.1, momentum=0.9, nesterov=True)": "nesterov nesterovsgd nesterovmomentum nag",
    "Chain(SGD(0.1, momentum=0.9), AddDecayedWeights(-1e-5))": "sgdw decoupledsgdw",
    "Lookahead(RAdam(1e-3), sync_period=6, slow_step_size=0.5)": "ranger",
    "ASGD(0.1)": "averagedsgd",
    "AdamW(schedules.SGDR.geometric(1e-3, 100, cycles=4))": "adamwr sgdwr",
    "GaLore(1e-3)": "galoreadamw galoreadam",
    "DAdaptAdamW(1.0)": "dadaptadam dadaptation",
    "LossScaling(AdamW(1e-3))": "gradscaler dynamicscale dynamiclossscale lossscaler lossscaleoptimizer",
    "ClipByGlobalNorm(1.0)": "clipgradnorm clipgradbyglobalnorm gradientclipping gradclip clipnorm",
    "Clip(1.0)": "clipgradvalue clipbyvalue",
    "MultiSteps(AdamW(1e-3), every_k=4)": "gradientaccumulation accumulategradients gradientaccumulator",
    "StochasticRounding(AdamW(1e-3))": "adamwbfloat16 stochasticadamw",
    f"ParamEMA(AdamW(1e-3), decay=0.999){_AVERAGE}": "emamodel modelema paramsema emaparams weightema emaweights "
    "emaoptimizer averagedmodel exponentialmovingaverage weightaveraging",
    f"ParamAverage(SGD(0.1), start=1000, every=100){_AVERAGE}": "swa stochasticweightaveraging polyakaveraging "
    "polyakaverage averageparams paramsaverage",
    f"ParamAverage(AdamW(1e-3), every=1000, window=6){_AVERAGE}": "lawa latestweightaveraging",
    "ClipByNormPercentile": "autoclip",
    "ClipByRunningNorm": "zclip",
    "ScaleByPath": "lrmultipliers",
    "SkipSpikes": "skipsteponspikes",
    "StableAdamW": "clipupdaterms",
    "groups": "paramgroups parametergroups",
    "layerwise_decay": "layerdecay layerwiselrdecay llrd paramgroupslayerdecay",
    "mup": "muadam muadamw musgd setbaseshapes",
    "Chain(ScaleByAdam(), ScaleByTrustRatio(), ScaleByLearningRate(1e-2), Stateless(lambda u, p: jax.tree.map(lambda "
    "u, p: (p + u) * jnp.linalg.norm(p) / jnp.linalg.norm(p + u) - p, u, p))) # It keeps the norm of each array: train "
    "matrices by it. With `ScaleByMuon`, it is MuonH.": "hyperball adamh muonh hyperballadamw",
    "checkpoint.restore": "load loadcheckpoint restorecheckpoint",
    "linalg.orthogonalize": "newtonschulz newtonschulz5 zeropowervianewtonschulz5",
    "losses.sigmoid_binary_cross_entropy": "bce bceloss bcewithlogitsloss binarycrossentropy",
    "losses.softmax_cross_entropy_with_integer_labels": "crossentropy crossentropyloss nll nllloss",
    "losses.squared_error": "mse mseloss meansquarederror",
    "sweeps.grid": "gridsearch",
    "linen.TrainState": "trainstate",
    "nnx.Optimizer": "nnxoptimizer modelandoptimizer",
    "schedules.CosineDecay(1e-3, decay_steps=1000)": "cosineannealinglr cosineannealing cosinelr",
    "schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=100, decay_steps=1000)": "getcosineschedulewithwarmup "
    "linearwarmupcosineannealinglr linearwarmupcosinedecay cosinewarmup warmupcosine cosinewarmupscheduler "
    "warmupcosineannealing cosinewithwarmup cosineschedulewithwarmup",
    "schedules.Join([schedules.Linear(0.0, 1e-3, 100), schedules.Linear(1e-3, 0.0, 900)], [100])": "warmuplinear "
    "getlinearschedulewithwarmup linearschedulewithwarmup sequentiallr linearwarmuplineardecay",
    "schedules.Linear(0.0, 1e-3, transition_steps=100)": "linearlr linearwarmup warmup linearwarmuplr warmuplr",
    "schedules.Linear(1e-3, 0.0, transition_steps=1000)": "lineardecay",
    "schedules.Constant(1e-3)": "constantlr constantschedule getconstantschedule",
    "schedules.WarmupConstant(0.0, 1e-3, warmup_steps=100)": "getconstantschedulewithwarmup warmupconstantlr",
    "schedules.PiecewiseConstant(0.1, {30: 0.1, 60: 0.1})": "steplr multisteplr step stepdecay piecewiseconstantdecay "
    "multistep",
    "schedules.ExponentialDecay(1e-3, transition_steps=1, decay_rate=0.9)": "exponentiallr exponential",
    "schedules.Polynomial(1e-3, 0.0, power=2.0, transition_steps=1000)": "polynomiallr polynomialdecay polylr",
    "schedules.CosineOneCycle(1000, 1e-3)": "onecyclelr onecycle onecyclepolicy",
    "schedules.SGDR.geometric(1e-3, 100, cycles=4)": "cosineannealingwarmrestarts "
    "cosinedecayrestarts warmrestarts cosinerestarts cosineannealingwarmuprestarts",
    "schedules.InverseSqrt(1e-3, 1000)": "inversesqrtdecay noam noamlr noamscheduler noamdecay rsqrt "
    "getinversesqrtschedule",
    "schedules.WarmupStableDecay(0.0, 1e-3, 100, 800, 100)": "wsd warmupdecay trapezoidal trapezoid getwsdschedule "
    "warmupstabledecaylr",
    "AdamW(lambda step: 1e-3 / (1 + step / 10))": "lambdalr inversetimedecay multiplicativelr",
    "AdamW(lambda step: 1e-3 * abs(1 - step % 200 / 100))": "cycliclr cyclic triangular",
    "schedules.CosineDecay(1e-3, 1000) * schedules.Linear(0.0, 1.0, 100)": "chainedscheduler chained",
}

# Optimizers of papers and other libraries that are not here, in the spelling of `plain`.
NOT_HERE = (
    "qapollo adamod diffgrad swats pid adamp sgdp kfac ekfac eva lomo adalomo adams conda trac adalite pnm adapnm "
    "svrg saga sarah spider rangerlars ranger21 ranger25 adasmooth adabound adaboundw padam adanorm adashift "
    "avagrad nero gsam esam wsam fira spam stablespam kate larc ivon von vogn natgrad sparseadam adago fadam "
    "splus dion2"
)
