"""Which released code each class is compared with, and where a class departs from it on purpose."""

from typing import NamedTuple


class Released(NamedTuple):
    """A row of the tables of released code in `docs/released_code.md`.

    Attributes:
        names: the classes that are compared with it.
        source: the package, or the repository and the file.
        version: the version of the package, or the commit.
        settings: the arguments that either side needs, beyond equal hyperparameters.
    """

    names: str
    source: str
    version: str
    settings: str = ""


class Departure(NamedTuple):
    """A row of the second table: two trajectories that are apart, and how far.

    Attributes:
        subject: the class, and the situation if it is not all of it.
        ours: what modulax does.
        theirs: what the released code does.
        why: the reason.
        trajectory: the name of the frozen trajectory.
        distance: the largest distance, as a fraction of the largest parameter.
    """

    subject: str
    ours: str
    theirs: str
    why: str
    trajectory: str
    distance: float


JASPER = "PyTorch/SpeechRecognition/Jasper/common/optimizers.py"
RELEASED = (
    Released("SGD, AdamW, AMSGrad, Adamax, Adadelta, Rprop", "torch.optim", "2.13.0"),
    Released("RMSProp", "torch.optim", "2.13.0", "`eps_in_sqrt=False`"),
    Released("RAdam", "torch.optim", "2.13.0", "`eps=0` in both"),
    Released("ParamEMA", "torch.optim.swa_utils", "2.13.0", "`debias=False`, and `start` at its first update"),
    Released("ParamAverage", "torch.optim.swa_utils", "2.13.0"),
    Released("ScheduleFreeSGD, ScheduleFreeAdamW", "schedulefree", "1.4.1"),
    Released("DAdaptAdamW", "dadaptation", "3.2", "theirs: `decouple=True`"),
    Released("Prodigy", "prodigyopt", "1.1.2"),
    Released("DoG", "dog-optimizer", "1.0.3"),
    Released("MADGRAD", "madgrad", "1.3"),
    Released("AdaBelief", "adabelief-pytorch", "0.2.1", "theirs: `rectify=False`"),
    Released(
        "ACProp",
        "juntang-zhuang/ACProp-Optimizer",
        "a880843025e6",
        "theirs: `rectify=False`; their `eps` is both `eps` and `eps_root`, `ACProp(eps=1e-8, eps_root=1e-8)`",
    ),
    Released("MoMo, MoMoAdam", "fabian-sp/MoMo", "7be52f222709"),
    Released("Mechanize", "optimizedlearning/mechanic", "4a037bcd4a9c", "theirs: `store_delta=True`"),
    Released("SAM", "davda54/sam", "3c3afdbd71cf", "`Chain(Normalize(), SGD(rho))`"),
    Released("Muon", "KellerJordan/Muon", "857d1adc159e", "`eps=1e-7`; theirs without the cast to bfloat16"),
    Released(
        "GaLore",
        "jiaweizzhao/GaLore",
        "2cc66f88cce1",
        "`base_optimizer=ScaleByAdam(eps=1e-6, corrected_eps=False)`; `update_proj_gap` and `scale` as there; theirs "
        "without the cast to float32",
    ),
    Released("ADOPT", "iShohei220/adopt", "6468572b4b36"),
    Released("AdEMAMix", "apple/ml-ademamix", "c3d73c09f128", "schedules of `t + 1`"),
    Released("Adan", "sail-sg/Adan", "2c65beaf4007", "`eps_root=0`"),
    Released("Lion", "google/automl, lion/lion_pytorch.py", "6a54c8741e7c"),
    Released("NovoGrad", f"NVIDIA/DeepLearningExamples, {JASPER}", "729963dd47e7"),
    Released("COCOB", "bremen79/parameterfree", "8e130f23a9f3"),
    Released("DoWG", "rka97/dowg", "e4dbe02c7cee"),
    Released("Fromage", "jxbz/fromage", "4a6593b628dd"),
    Released("Sophia", "Liuhong99/Sophia, sophia.py", "a7e157229b71", "`gamma` is `rho` times the batch size"),
    Released("Yogi", "tensorflow/addons, optimizers/yogi.py", "d208d752e98c"),
    Released("LAMB", "tensorflow/addons, optimizers/lamb.py", "d208d752e98c"),
    Released("SM3", "google-research/google-research, sm3/sm3.py", "0c1bbe5fc971", "`eps=1e-30`"),
    Released(
        "SkipSpikes",
        "AI-Hypercomputer/maxtext, src/maxtext/optimizers/optimizers.py",
        "e591f30cbbf2",
        '`by="both"`, `warmup_steps` is half of the window, less 1',
    ),
    Released(
        "SkipSpikes",
        "stanford-crfm/levanter, src/levanter/optim/skipstep.py",
        "9263f81e8b45",
        '`by="both"`, `warmup_steps` is half of the window, and `factor` is theirs times the root of `(n - 1) / n`',
    ),
    Released(
        "ClipByRunningNorm", "bluorion-com/ZClip", "584ce4f5a4aa", "theirs without the bound 1, and exact division"
    ),
    Released("ClipByNormPercentile", "pseeth/autoclip", "dfb622c3caca", "theirs with exact division"),
    Released("StableAdamW", "torch-optimi", "0.3.3"),
)

# Compared by `tests/test_released_first_order.py`.
FIRST_ORDER = (
    Released(
        "LaProp",
        "Z-T-WANG/LaProp-Optimizer, laprop.py",
        "a419916505bf",
        "with a learning rate of zero, theirs steps by the momentum, and ours does not move",
    ),
    Released(
        "LaProp",
        "huggingface/pytorch-image-models, timm/optim/laprop.py",
        "aa4b5850c154",
        "the weights decay after the step, at the rate: `Chain(ScaleByLaProp(rate), ScaleByLearningRate(rate), "
        "Scale(1 - rate * decay), AddDecayedWeights(-rate * decay))`",
    ),
    Released(
        "QHM, QHAdam",
        "facebookresearch/qhoptim",
        "e81dea3f2765",
        "an $L_2$ penalty is `AddDecayedWeights` before `QHM` or `QHAdam`, decoupled weight decay after `ScaleByQHM`",
    ),
    Released(
        "AggMo", "AtheMathmo/AggMo, aggmo.py", "f91730d1c3d8", "the $L_2$ penalty is `AddDecayedWeights` before `AggMo`"
    ),
    Released("AdamC", "huggingface/pytorch-image-models, timm/optim/adamw.py", "aa4b5850c154", "`AdamWLegacy` there"),
    Released(
        "FTRL",
        "keras, torch backend",
        "3.15.1",
        "`l1`, `l2` and `l2_shrinkage` are `l1_regularization_strength`, `l2_regularization_strength` and "
        "`l2_shrinkage_regularization_strength`; a constant learning rate, because theirs shrinks parameters with it",
    ),
    Released(
        "ASGD",
        "torch.optim",
        "2.14.1",
        "`weight_decay` is `lambd`, `start` is `t0 + 1`; their `weight_decay` is `AddDecayedWeights` before `ASGD`",
    ),
    Released(
        "Tiger",
        "bojone/tiger, tiger.py",
        "43fb6b699fd4",
        "`every_k` is `grad_accum_steps`; `lr_schedule` is a schedule; roles replace the names that theirs reads",
    ),
    Released("FOCUS", "liuyz0/FOCUS, focus.py", "bdda7f8cab33", "the first attraction there has the sign of rounding"),
)
# Compared by `tests/test_released_curvature.py`.
CURVATURE = (
    Released("AdaHessian", "amirgholami/adahessian, image_classification", "85ebc00ce873"),
    Released(
        "AdaHessian",
        "amirgholami/adahessian, instruction",
        "85ebc00ce873",
        "`per_output=True`; other blocks by a transform after `HutchinsonDiagonal`",
    ),
    Released("AdamMini", "zyushun/Adam-mini", "402aadfed237", "roles instead of the names that theirs reads"),
    Released(
        "Amos",
        "google-research/jestimator, jestimator/amos.py",
        "326824a477fe",
        "schedules of `t + 1`; their `shape_fn` is `per_output=True`",
    ),
    Released("Apollo, ApolloMini", "zhuhanqing/APOLLO, apollo_torch/apollo.py", "76b34725abcb"),
    Released("CAME", "yangluo7/CAME", "e77c5c022eaf"),
    Released("SophiaG", "Liuhong99/Sophia, sophia.py", "a7e157229b71", "`batch_size` is `bs`"),
)

# Compared by `tests/test_released_around.py`.
AROUND = (
    Released(
        "Cautious, CautiousAdamW",
        "kyleliang919/C-Optim, c_adamw.py",
        "2c0517c4db2e",
        "theirs with `foreach=False` adds `eps` before the bias correction, `ScaleByAdam(corrected_eps=False)`, and at "
        '3106e07 divides by the count, `normalize="count"`',
    ),
    Released("Cautious, CautiousLion", "kyleliang919/C-Optim, c_lion.py", "2c0517c4db2e", '`normalize="count"`'),
    Released("Cautious", "huggingface/pytorch-image-models, timm/optim/lion.py", "aa4b5850c154", "around `Lion`"),
    Released("GrokFast", "ironjr/grokfast, `gradfilter_ema`", "93b2248e351d", "before an optimizer"),
    Released(
        "GrokFastMA",
        "ironjr/grokfast, `gradfilter_ma`",
        "93b2248e351d",
        'before an optimizer; `use_mean=False` is their `filter_type="sum"`',
    ),
    Released(
        "MARS, MARSLion",
        "AGI-Arena/MARS, MARS/optimizers/mars.py",
        "4831e28eba86",
        "`where=True` is their `optimize_1d`; both forms, `exact` and not",
    ),
    Released(
        "MARS",
        "huggingface/pytorch-image-models, timm/optim/mars.py",
        "aa4b5850c154",
        "`adam_b1` and `adam_b2` equal to `b1` and `b2`; in the first step, theirs leaves the gradient unchanged, here "
        "by schedules of `gamma` and `max_norm`",
    ),
    Released(
        "GPAAdamW, PrimalAveraging",
        "facebookresearch/optimizers, gpa/gpa_adamw.py",
        "f60660661194",
        "`decay_on_y` is their `use_wd_on_y`; their `SCHEDULE_FREE` is a schedule of `eval_interp_coeff`",
    ),
    Released(
        "DiLoCo",
        "PrimeIntellect-ai/OpenDiloco, open_diloco/train_diloco_torch.py",
        "a5b7236b269d",
        "their loop, with one worker and with two, without its clip and its schedule; the outer optimizer is, by "
        "default, theirs: `Chain(Trace(0.9, nesterov=True), ScaleByLearningRate(0.7))`",
    ),
    Released(
        "Grams, GramsAdamW",
        "Gunale0926/Grams, grams/src/grams.py",
        "f91a375daaa8",
        "`correct_bias=False` has no argument here: it is `Chain(ScaleByAdam(corrected_eps=False), "
        "ScaleBySchedule(...))` in `Grams`, by the factor $(1 - \\beta_1^t) / \\sqrt{1 - \\beta_2^t}$",
    ),
    Released("AddDecayedWeights", "microsoft/dion, dion/scalar_opts.py", "0a059a4542e5", "`cautious=True`"),
)

DEPARTURES = (
    Departure(
        "AdaBelief",
        "the algorithm of the paper",
        "rectified as RAdam is, by default",
        "the authors say that no result of the paper was rectified",
        "AdaBelief/rectified",
        2.3,
    ),
    Departure(
        "ACProp",
        "the algorithm of the paper",
        "rectified as RAdam is, by default",
        "the authors' experiments have `rectify=False`; with `rectified=True` they agree",
        "ACProp/rectified",
        1.8,
    ),
    Departure(
        "Adan(eps_root=1e-8)",
        "adds `eps_root` inside the root, as optax does by default",
        "has no `eps_root`",
        "defaults are those of optax; with `eps_root=0` they agree",
        "Adan/default",
        4.7e-8,
    ),
    Departure(
        "GaLore, first moments after a new projection",
        "decomposes gradients of shape (in, out)",
        "decomposes their transposes, whose singular vectors may have other signs",
        "signs of singular vectors are arbitrary; they matter only for moments from before the new projection",
        "GaLore/signs",
        0.18,
    ),
    Departure(
        "Mechanize",
        "stores the sum of the steps",
        "by default recomputes it from the parameters, divided by the scale plus `eps`",
        "in bfloat16 a recomputed sum stays zero; with `store_delta=False` they agree",
        "Mechanize/recomputed",
        2.2e-5,
    ),
    Departure(
        "Muon",
        "iterates in the dtype of the parameters, in at least float32",
        "iterates in bfloat16",
        "lower precision is the choice of the user; without the cast they agree",
        "Muon/bfloat16",
        1.4e-2,
    ),
    Departure(
        "RAdam with `eps`",
        "`eps` is added after the bias correction, as in Adam",
        "`eps` is added before the bias correction",
        "the paper has no `eps`; its place is that in optax",
        "RAdam/eps",
        1.4e-3,
    ),
    Departure(
        "Sophia, before the first estimate is due",
        "makes an estimate in the first step, as in algorithm 3 of the paper",
        "the training script makes the first one after `update_interval` steps, all of which are clipped",
        "the class in the same repository leaves this to its caller; called in the first step, it agrees. `SophiaG` "
        "does as the script",
        "Sophia/late",
        0.52,
    ),
)
