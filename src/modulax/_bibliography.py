"""The papers behind the algorithms, under the keys that classes cite them by."""

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or whatever else first described an algorithm."""

    authors: str
    title: str
    year: int
    url: str


BIBLIOGRAPHY = {
    "anil2019": Reference(
        "Anil, Rohan and Gupta, Vineet and Koren, Tomer and Singer, Yoram",
        "Memory-Efficient Adaptive Optimization",
        2019,
        "https://arxiv.org/abs/1901.11150",
    ),
    "bernstein2020": Reference(
        "Bernstein, Jeremy and Vahdat, Arash and Yue, Yisong and Liu, Ming-Yu",
        "On the distance between two neural networks and the stability of learning",
        2020,
        "https://arxiv.org/abs/2002.03432",
    ),
    "brock2021": Reference(
        "Brock, Andrew and De, Soham and Smith, Samuel L. and Simonyan, Karen",
        "High-Performance Large-Scale Image Recognition Without Normalization",
        2021,
        "https://arxiv.org/abs/2102.06171",
    ),
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
    "foret2020": Reference(
        "Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam",
        "Sharpness-Aware Minimization for Efficiently Improving Generalization",
        2020,
        "https://arxiv.org/abs/2010.01412",
    ),
    "kingma2014": Reference(
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        2014,
        "https://arxiv.org/abs/1412.6980",
    ),
    "neelakantan2015": Reference(
        "Neelakantan, Arvind and Vilnis, Luke and Le, Quoc V. and Sutskever, Ilya and Kaiser, Lukasz and "
        "Kurach, Karol and Martens, James",
        "Adding Gradient Noise Improves Learning for Very Deep Networks",
        2015,
        "https://arxiv.org/abs/1511.06807",
    ),
    "shazeer2018": Reference(
        "Shazeer, Noam and Stern, Mitchell",
        "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
        2018,
        "https://arxiv.org/abs/1804.04235",
    ),
    "yong2020": Reference(
        "Yong, Hongwei and Huang, Jianqiang and Hua, Xiansheng and Zhang, Lei",
        "Gradient Centralization: A New Optimization Technique for Deep Neural Networks",
        2020,
        "https://arxiv.org/abs/2004.01461",
    ),
    "you2017": Reference(
        "You, Yang and Gitman, Igor and Ginsburg, Boris",
        "Large Batch Training of Convolutional Networks",
        2017,
        "https://arxiv.org/abs/1708.03888",
    ),
    "you2019": Reference(
        "You, Yang and Li, Jing and Reddi, Sashank and Hseu, Jonathan and Kumar, Sanjiv and Bhojanapalli, "
        "Srinadh and Song, Xiaodan and Demmel, James and Keutzer, Kurt and Hsieh, Cho-Jui",
        "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
        2019,
        "https://arxiv.org/abs/1904.00962",
    ),
}
