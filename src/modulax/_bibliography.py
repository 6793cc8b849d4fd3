"""The papers behind the algorithms, under the keys that classes cite them by."""

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or whatever else first described an algorithm."""

    authors: str
    title: str
    year: int
    url: str


BIBLIOGRAPHY = {
    "bekas2007": Reference(
        "Bekas, Costas and Kokiopoulou, Effrosyni and Saad, Yousef",
        "An estimator for the diagonal of a matrix",
        2007,
        "https://doi.org/10.1016/j.apnum.2007.01.003",
    ),
    "bernstein2018": Reference(
        "Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar and Anandkumar, Anima",
        "signSGD: Compressed Optimisation for Non-Convex Problems",
        2018,
        "https://arxiv.org/abs/1802.04434",
    ),
    "chen2023": Reference(
        "Chen, Xiangning and Liang, Chen and Huang, Da and Real, Esteban and Wang, Kaiyuan and Liu, Yao and Pham, Hieu "
        "and Dong, Xuanyi and Luong, Thang and Hsieh, Cho-Jui and Lu, Yifeng and Le, Quoc V.",
        "Symbolic Discovery of Optimization Algorithms",
        2023,
        "https://arxiv.org/abs/2302.06675",
    ),
    "defazio2021": Reference(
        "Defazio, Aaron and Jelassi, Samy",
        "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method for "
        "Stochastic Optimization",
        2021,
        "https://arxiv.org/abs/2101.11075",
    ),
    "dozat2016": Reference(
        "Dozat, Timothy",
        "Incorporating Nesterov Momentum into Adam",
        2016,
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ),
    "hutchinson1990": Reference(
        "Hutchinson, Michael F.",
        "A stochastic estimator of the trace of the influence matrix for Laplacian smoothing splines",
        1990,
        "https://doi.org/10.1080/03610919008812866",
    ),
    "igel2003": Reference(
        "Igel, Christian and Hüsken, Michael",
        "Empirical evaluation of the improved Rprop learning algorithms",
        2003,
        "https://doi.org/10.1016/S0925-2312(01)00700-7",
    ),
    "kingma2014": Reference(
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        2014,
        "https://arxiv.org/abs/1412.6980",
    ),
    "liu2023": Reference(
        "Liu, Hong and Li, Zhiyuan and Hall, David and Liang, Percy and Ma, Tengyu",
        "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training",
        2023,
        "https://arxiv.org/abs/2305.14342",
    ),
    "morwani2025": Reference(
        "Morwani, Depen and Vyas, Nikhil and Zhang, Hanlin and Kakade, Sham",
        "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants",
        2025,
        "https://arxiv.org/abs/2502.02431",
    ),
    "pagliardini2024": Reference(
        "Pagliardini, Matteo and Ablin, Pierre and Grangier, David",
        "The AdEMAMix Optimizer: Better, Faster, Older",
        2024,
        "https://arxiv.org/abs/2409.03137",
    ),
    "riedmiller1993": Reference(
        "Riedmiller, Martin and Braun, Heinrich",
        "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
        1993,
        "https://doi.org/10.1109/ICNN.1993.298623",
    ),
    "taniguchi2024": Reference(
        "Taniguchi, Shohei and Harada, Keno and Minegishi, Gouki and Oshima, Yuta and Jeong, Seong Cheol and "
        "Nagahara, Go and Iiyama, Tomoshi and Suzuki, Masahiro and Iwasawa, Yusuke and Matsuo, Yutaka",
        "ADOPT: Modified Adam Can Converge with Any β2 with the Optimal Rate",
        2024,
        "https://arxiv.org/abs/2411.02853",
    ),
    "zhuang2021": Reference(
        "Zhuang, Juntang and Ding, Yifan and Tang, Tommy and Dvornek, Nicha and Tatikonda, Sekhar and Duncan, James S.",
        "Momentum Centering and Asynchronous Update for Adaptive Gradient Methods",
        2021,
        "https://arxiv.org/abs/2110.05454",
    ),
}
