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
    "dozat2016": Reference(
        "Dozat, Timothy",
        "Incorporating Nesterov Momentum into Adam",
        2016,
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ),
    "kingma2014": Reference(
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        2014,
        "https://arxiv.org/abs/1412.6980",
    ),
}
