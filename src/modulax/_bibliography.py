"""The papers behind the algorithms, under the keys that classes cite them by."""

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or whatever else first described an algorithm."""

    author: str
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
    "graves2013": Reference(
        "Graves, Alex",
        "Generating Sequences With Recurrent Neural Networks",
        2013,
        "https://arxiv.org/abs/1308.0850",
    ),
    "loshchilov2017": Reference(
        "Loshchilov, Ilya and Hutter, Frank",
        "Decoupled Weight Decay Regularization",
        2017,
        "https://arxiv.org/abs/1711.05101",
    ),
    "pascanu2013": Reference(
        "Pascanu, Razvan and Mikolov, Tomas and Bengio, Yoshua",
        "On the difficulty of training recurrent neural networks",
        2013,
        "https://arxiv.org/abs/1211.5063",
    ),
    "polyak1964": Reference(
        "Polyak, Boris T.",
        "Some methods of speeding up the convergence of iteration methods",
        1964,
        "https://doi.org/10.1016/0041-5553(64)90137-5",
    ),
    "robbins1951": Reference(
        "Robbins, Herbert and Monro, Sutton",
        "A Stochastic Approximation Method",
        1951,
        "https://doi.org/10.1214/aoms/1177729586",
    ),
    "tieleman2012": Reference(
        "Tieleman, Tijmen and Hinton, Geoffrey",
        "Lecture 6.5: RMSProp",
        2012,
        "https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
    ),
}
