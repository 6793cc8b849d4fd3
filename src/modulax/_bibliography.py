"""The papers behind the algorithms, under the keys that classes cite them by."""

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or whatever else first described an algorithm."""

    authors: str
    title: str
    year: int
    url: str


BIBLIOGRAPHY = {
    "chen2023": Reference(
        "Chen, Xiangning and Liang, Chen and Huang, Da and Real, Esteban and Wang, Kaiyuan and Liu, Yao and Pham, Hieu "
        "and Dong, Xuanyi and Luong, Thang and Hsieh, Cho-Jui and Lu, Yifeng and Le, Quoc V.",
        "Symbolic Discovery of Optimization Algorithms",
        2023,
        "https://arxiv.org/abs/2302.06675",
    ),
    "defazio2023": Reference(
        "Defazio, Aaron and Mishchenko, Konstantin",
        "Learning-Rate-Free Learning by D-Adaptation",
        2023,
        "https://arxiv.org/abs/2301.07733",
    ),
    "dozat2016": Reference(
        "Dozat, Timothy",
        "Incorporating Nesterov Momentum into Adam",
        2016,
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ),
    "garrigos2023": Reference(
        "Garrigos, Guillaume and Gower, Robert M. and Schaipp, Fabian",
        "Function Value Learning: Adaptive Learning Rates Based on the Polyak Stepsize and Function Splitting in ERM",
        2023,
        "https://arxiv.org/abs/2307.14528",
    ),
    "ivgi2023": Reference(
        "Ivgi, Maor and Hinder, Oliver and Carmon, Yair",
        "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule",
        2023,
        "https://arxiv.org/abs/2302.12022",
    ),
    "khaled2023": Reference(
        "Khaled, Ahmed and Mishchenko, Konstantin and Jin, Chi",
        "DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent Method",
        2023,
        "https://arxiv.org/abs/2305.16284",
    ),
    "kingma2014": Reference(
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        2014,
        "https://arxiv.org/abs/1412.6980",
    ),
    "loizou2020": Reference(
        "Loizou, Nicolas and Vaswani, Sharan and Laradji, Issam and Lacoste-Julien, Simon",
        "Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast Convergence",
        2020,
        "https://arxiv.org/abs/2002.10542",
    ),
    "mishchenko2023": Reference(
        "Mishchenko, Konstantin and Defazio, Aaron",
        "Prodigy: An Expeditiously Adaptive Parameter-Free Learner",
        2023,
        "https://arxiv.org/abs/2306.06101",
    ),
    "orabona2017": Reference(
        "Orabona, Francesco and Tommasi, Tatiana",
        "Training Deep Networks without Learning Rates Through Coin Betting",
        2017,
        "https://arxiv.org/abs/1705.07795",
    ),
    "schaipp2023": Reference(
        "Schaipp, Fabian and Ohana, Ruben and Eickenberg, Michael and Defazio, Aaron and Gower, Robert M.",
        "MoMo: Momentum Models for Adaptive Learning Rates",
        2023,
        "https://arxiv.org/abs/2305.07583",
    ),
}
