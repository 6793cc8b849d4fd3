"""The papers of the algorithms, by the keys that the classes list in `cites`."""

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or another publication that first described an algorithm."""

    author: str
    title: str
    year: int
    url: str


BIBLIOGRAPHY = {
    "abadi2016": Reference(
        "Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan and Mironov, Ilya and Talwar, "
        "Kunal and Zhang, Li",
        "Deep Learning with Differential Privacy",
        2016,
        "https://arxiv.org/abs/1607.00133",
    ),
    "anil2019": Reference(
        "Anil, Rohan and Gupta, Vineet and Koren, Tomer and Singer, Yoram",
        "Memory-Efficient Adaptive Optimization",
        2019,
        "https://arxiv.org/abs/1901.11150",
    ),
    "bao2021": Reference(
        "Bao, Hangbo and Dong, Li and Piao, Songhao and Wei, Furu",
        "BEiT: BERT Pre-Training of Image Transformers",
        2021,
        "https://arxiv.org/abs/2106.08254",
    ),
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
    "chan1983": Reference(
        "Chan, Tony F. and Golub, Gene H. and LeVeque, Randall J.",
        "Algorithms for Computing the Sample Variance: Analysis and Recommendations",
        1983,
        "https://doi.org/10.1080/00031305.1983.10483115",
    ),
    "chen2023": Reference(
        "Chen, Xiangning and Liang, Chen and Huang, Da and Real, Esteban and Wang, Kaiyuan and Liu, Yao and Pham,"
        " Hieu and Dong, Xuanyi and Luong, Thang and Hsieh, Cho-Jui and Lu, Yifeng and Le, Quoc V.",
        "Symbolic Discovery of Optimization Algorithms",
        2023,
        "https://arxiv.org/abs/2302.06675",
    ),
    "cutkosky2023": Reference(
        "Cutkosky, Ashok and Defazio, Aaron and Mehta, Harsh",
        "Mechanic: A Learning Rate Tuner",
        2023,
        "https://arxiv.org/abs/2306.00144",
    ),
    "daskalakis2017": Reference(
        "Daskalakis, Constantinos and Ilyas, Andrew and Syrgkanis, Vasilis and Zeng, Haoyang",
        "Training GANs with Optimism",
        2017,
        "https://arxiv.org/abs/1711.00141",
    ),
    "defazio2021": Reference(
        "Defazio, Aaron and Jelassi, Samy",
        "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method for Stochastic "
        "Optimization",
        2021,
        "https://arxiv.org/abs/2101.11075",
    ),
    "defazio2023": Reference(
        "Defazio, Aaron and Mishchenko, Konstantin",
        "Learning-Rate-Free Learning by D-Adaptation",
        2023,
        "https://arxiv.org/abs/2301.07733",
    ),
    "defazio2024": Reference(
        "Defazio, Aaron and Yang, Xingyu and Mehta, Harsh and Mishchenko, Konstantin and Khaled, Ahmed and Cutkosky, "
        "Ashok",
        "The Road Less Scheduled",
        2024,
        "https://arxiv.org/abs/2405.15682",
    ),
    "dettmers2021": Reference(
        "Dettmers, Tim and Lewis, Mike and Shleifer, Sam and Zettlemoyer, Luke",
        "8-bit Optimizers via Block-wise Quantization",
        2021,
        "https://arxiv.org/abs/2110.02861",
    ),
    "dozat2016": Reference(
        "Dozat, Timothy",
        "Incorporating Nesterov Momentum into Adam",
        2016,
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ),
    "duchi2011": Reference(
        "Duchi, John and Hazan, Elad and Singer, Yoram",
        "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
        2011,
        "https://jmlr.org/papers/v12/duchi11a.html",
    ),
    "foret2020": Reference(
        "Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam",
        "Sharpness-Aware Minimization for Efficiently Improving Generalization",
        2020,
        "https://arxiv.org/abs/2010.01412",
    ),
    "garrigos2023": Reference(
        "Garrigos, Guillaume and Gower, Robert M. and Schaipp, Fabian",
        "Function Value Learning: Adaptive Learning Rates Based on the Polyak Stepsize and Function Splitting in ERM",
        2023,
        "https://arxiv.org/abs/2307.14528",
    ),
    "ginsburg2019": Reference(
        "Ginsburg, Boris and Castonguay, Patrice and Hrinchuk, Oleksii and Kuchaiev, Oleksii and Lavrukhin, "
        "Vitaly and Leary, Ryan and Li, Jason and Nguyen, Huyen and Zhang, Yang and Cohen, Jonathan M.",
        "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep Networks",
        2019,
        "https://arxiv.org/abs/1905.11286",
    ),
    "graves2013": Reference(
        "Graves, Alex",
        "Generating Sequences With Recurrent Neural Networks",
        2013,
        "https://arxiv.org/abs/1308.0850",
    ),
    "gupta2015": Reference(
        "Gupta, Suyog and Agrawal, Ankur and Gopalakrishnan, Kailash and Narayanan, Pritish",
        "Deep Learning with Limited Numerical Precision",
        2015,
        "https://arxiv.org/abs/1502.02551",
    ),
    "hager2006": Reference(
        "Hager, William W. and Zhang, Hongchao",
        "Algorithm 851: CG_DESCENT, a Conjugate Gradient Method with Guaranteed Descent",
        2006,
        "https://doi.org/10.1145/1132973.1132979",
    ),
    "howard2018": Reference(
        "Howard, Jeremy and Ruder, Sebastian",
        "Universal Language Model Fine-tuning for Text Classification",
        2018,
        "https://arxiv.org/abs/1801.06146",
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
    "ivgi2023": Reference(
        "Ivgi, Maor and Hinder, Oliver and Carmon, Yair",
        "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule",
        2023,
        "https://arxiv.org/abs/2302.12022",
    ),
    "izmailov2018": Reference(
        "Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and Wilson, Andrew Gordon",
        "Averaging Weights Leads to Wider Optima and Better Generalization",
        2018,
        "https://arxiv.org/abs/1803.05407",
    ),
    "jordan2024": Reference(
        "Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng and Cesista, Franz and Newhouse, Laker "
        "and Bernstein, Jeremy",
        "Muon: An optimizer for hidden layers in neural networks",
        2024,
        "https://kellerjordan.github.io/posts/muon/",
    ),
    "kaddour2022": Reference(
        "Kaddour, Jean",
        "Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging",
        2022,
        "https://arxiv.org/abs/2209.14981",
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
    "kumar2025": Reference(
        "Kumar, Abhay and Owen, Louis and Roy Chowdhury, Nilabhra and Güra, Fabian",
        "ZClip: Adaptive Spike Mitigation for LLM Pre-Training",
        2025,
        "https://arxiv.org/abs/2504.02507",
    ),
    "li2023": Reference(
        "Li, Bingrui and Chen, Jianfei and Zhu, Jun",
        "Memory Efficient Optimizers with 4-bit States",
        2023,
        "https://arxiv.org/abs/2309.01507",
    ),
    "liu1989": Reference(
        "Liu, Dong C. and Nocedal, Jorge",
        "On the limited memory BFGS method for large scale optimization",
        1989,
        "https://doi.org/10.1007/BF01589116",
    ),
    "liu2019": Reference(
        "Liu, Liyuan and Jiang, Haoming and He, Pengcheng and Chen, Weizhu and Liu, Xiaodong and Gao, Jianfeng "
        "and Han, Jiawei",
        "On the Variance of the Adaptive Learning Rate and Beyond",
        2019,
        "https://arxiv.org/abs/1908.03265",
    ),
    "liu2023": Reference(
        "Liu, Hong and Li, Zhiyuan and Hall, David and Liang, Percy and Ma, Tengyu",
        "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training",
        2023,
        "https://arxiv.org/abs/2305.14342",
    ),
    "loizou2020": Reference(
        "Loizou, Nicolas and Vaswani, Sharan and Laradji, Issam and Lacoste-Julien, Simon",
        "Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast Convergence",
        2020,
        "https://arxiv.org/abs/2002.10542",
    ),
    "loshchilov2017": Reference(
        "Loshchilov, Ilya and Hutter, Frank",
        "Decoupled Weight Decay Regularization",
        2017,
        "https://arxiv.org/abs/1711.05101",
    ),
    "micikevicius2017": Reference(
        "Micikevicius, Paulius and Narang, Sharan and Alben, Jonah and Diamos, Gregory and Elsen, Erich and Garcia, "
        "David and Ginsburg, Boris and Houston, Michael and Kuchaiev, Oleksii and Venkatesh, Ganesh and Wu, Hao",
        "Mixed Precision Training",
        2017,
        "https://arxiv.org/abs/1710.03740",
    ),
    "mishchenko2023": Reference(
        "Mishchenko, Konstantin and Defazio, Aaron",
        "Prodigy: An Expeditiously Adaptive Parameter-Free Learner",
        2023,
        "https://arxiv.org/abs/2306.06101",
    ),
    "mokhtari2019": Reference(
        "Mokhtari, Aryan and Ozdaglar, Asuman and Pattathil, Sarath",
        "A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for Saddle Point Problems: Proximal"
        " Point Approach",
        2019,
        "https://arxiv.org/abs/1901.08511",
    ),
    "moralesbrotons2024": Reference(
        "Morales-Brotons, Daniel and Vogels, Thijs and Hendrikx, Hadrien",
        "Exponential Moving Average of Weights in Deep Learning: Dynamics and Benefits",
        2024,
        "https://arxiv.org/abs/2411.18704",
    ),
    "morwani2025": Reference(
        "Morwani, Depen and Vyas, Nikhil and Zhang, Hanlin and Kakade, Sham",
        "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants",
        2025,
        "https://arxiv.org/abs/2502.02431",
    ),
    "neelakantan2015": Reference(
        "Neelakantan, Arvind and Vilnis, Luke and Le, Quoc V. and Sutskever, Ilya and Kaiser, Lukasz and Kurach, "
        "Karol and Martens, James",
        "Adding Gradient Noise Improves Learning for Very Deep Networks",
        2015,
        "https://arxiv.org/abs/1511.06807",
    ),
    "nocedal2006": Reference(
        "Nocedal, Jorge and Wright, Stephen J.",
        "Numerical Optimization",
        2006,
        "https://doi.org/10.1007/978-0-387-40065-5",
    ),
    "orabona2017": Reference(
        "Orabona, Francesco and Tommasi, Tatiana",
        "Training Deep Networks without Learning Rates Through Coin Betting",
        2017,
        "https://arxiv.org/abs/1705.07795",
    ),
    "pagliardini2024": Reference(
        "Pagliardini, Matteo and Ablin, Pierre and Grangier, David",
        "The AdEMAMix Optimizer: Better, Faster, Older",
        2024,
        "https://arxiv.org/abs/2409.03137",
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
    "polyak1992": Reference(
        "Polyak, Boris T. and Juditsky, Anatoli B.",
        "Acceleration of Stochastic Approximation by Averaging",
        1992,
        "https://doi.org/10.1137/0330046",
    ),
    "reddi2018": Reference(
        "Reddi, Sashank J. and Kale, Satyen and Kumar, Sanjiv",
        "On the Convergence of Adam and Beyond",
        2018,
        "https://openreview.net/forum?id=ryQu7f-RZ",
    ),
    "ren2021": Reference(
        "Ren, Jie and Rajbhandari, Samyam and Yazdani Aminabadi, Reza and Ruwase, Olatunji and Yang, Shuangyan and "
        "Zhang, Minjia and Li, Dong and He, Yuxiong",
        "ZeRO-Offload: Democratizing Billion-Scale Model Training",
        2021,
        "https://arxiv.org/abs/2101.06840",
    ),
    "riedmiller1993": Reference(
        "Riedmiller, Martin and Braun, Heinrich",
        "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
        1993,
        "https://doi.org/10.1109/ICNN.1993.298623",
    ),
    "robbins1951": Reference(
        "Robbins, Herbert and Monro, Sutton",
        "A Stochastic Approximation Method",
        1951,
        "https://doi.org/10.1214/aoms/1177729586",
    ),
    "schaipp2023": Reference(
        "Schaipp, Fabian and Ohana, Ruben and Eickenberg, Michael and Defazio, Aaron and Gower, Robert M.",
        "MoMo: Momentum Models for Adaptive Learning Rates",
        2023,
        "https://arxiv.org/abs/2305.07583",
    ),
    "seetharaman2020": Reference(
        "Seetharaman, Prem and Wichern, Gordon and Pardo, Bryan and Le Roux, Jonathan",
        "AutoClip: Adaptive Gradient Clipping for Source Separation Networks",
        2020,
        "https://arxiv.org/abs/2007.14469",
    ),
    "shazeer2018": Reference(
        "Shazeer, Noam and Stern, Mitchell",
        "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
        2018,
        "https://arxiv.org/abs/1804.04235",
    ),
    "taniguchi2024": Reference(
        "Taniguchi, Shohei and Harada, Keno and Minegishi, Gouki and Oshima, Yuta and Jeong, Seong Cheol and "
        "Nagahara, Go and Iiyama, Tomoshi and Suzuki, Masahiro and Iwasawa, Yusuke and Matsuo, Yutaka",
        "ADOPT: Modified Adam Can Converge with Any β2 with the Optimal Rate",
        2024,
        "https://arxiv.org/abs/2411.02853",
    ),
    "tieleman2012": Reference(
        "Tieleman, Tijmen and Hinton, Geoffrey",
        "Lecture 6.5: RMSProp",
        2012,
        "https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
    ),
    "vaswani2019": Reference(
        "Vaswani, Sharan and Mishkin, Aaron and Laradji, Issam and Schmidt, Mark and Gidel, Gauthier and "
        "Lacoste-Julien, Simon",
        "Painless Stochastic Gradient: Interpolation, Line-Search, and Convergence Rates",
        2019,
        "https://arxiv.org/abs/1905.09997",
    ),
    "xie2022": Reference(
        "Xie, Xingyu and Zhou, Pan and Li, Huan and Lin, Zhouchen and Yan, Shuicheng",
        "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models",
        2022,
        "https://arxiv.org/abs/2208.06677",
    ),
    "wortsman2023": Reference(
        "Wortsman, Mitchell and Dettmers, Tim and Zettlemoyer, Luke and Morcos, Ari and Farhadi, Ali and Schmidt, "
        "Ludwig",
        "Stable and low-precision training for large-scale vision-language models",
        2023,
        "https://arxiv.org/abs/2304.13013",
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
        "You, Yang and Li, Jing and Reddi, Sashank and Hseu, Jonathan and Kumar, Sanjiv and Bhojanapalli, Srinadh"
        " and Song, Xiaodan and Demmel, James and Keutzer, Kurt and Hsieh, Cho-Jui",
        "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
        2019,
        "https://arxiv.org/abs/1904.00962",
    ),
    "zaheer2018": Reference(
        "Zaheer, Manzil and Reddi, Sashank J. and Sachan, Devendra and Kale, Satyen and Kumar, Sanjiv",
        "Adaptive Methods for Nonconvex Optimization",
        2018,
        "https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization",
    ),
    "zamirai2020": Reference(
        "Zamirai, Pedram and Zhang, Jian and Aberger, Christopher R. and De Sa, Christopher",
        "Revisiting BFloat16 Training",
        2020,
        "https://arxiv.org/abs/2010.06192",
    ),
    "zeiler2012": Reference(
        "Zeiler, Matthew D.",
        "ADADELTA: An Adaptive Learning Rate Method",
        2012,
        "https://arxiv.org/abs/1212.5701",
    ),
    "zhang2019": Reference(
        "Zhang, Michael R. and Lucas, James and Hinton, Geoffrey and Ba, Jimmy",
        "Lookahead Optimizer: k steps forward, 1 step back",
        2019,
        "https://arxiv.org/abs/1907.08610",
    ),
    "zhao2024": Reference(
        "Zhao, Jiawei and Zhang, Zhenyu and Chen, Beidi and Wang, Zhangyang and Anandkumar, Anima and Tian, Yuandong",
        "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
        2024,
        "https://arxiv.org/abs/2403.03507",
    ),
    "zhuang2020": Reference(
        "Zhuang, Juntang and Tang, Tommy and Ding, Yifan and Tatikonda, Sekhar and Dvornek, Nicha and "
        "Papademetris, Xenophon and Duncan, James S.",
        "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients",
        2020,
        "https://arxiv.org/abs/2010.07468",
    ),
    "zhuang2021": Reference(
        "Zhuang, Juntang and Ding, Yifan and Tang, Tommy and Dvornek, Nicha and Tatikonda, Sekhar and Duncan, James S.",
        "Momentum Centering and Asynchronous Update for Adaptive Gradient Methods",
        2021,
        "https://arxiv.org/abs/2110.05454",
    ),
    "zhuang2022": Reference(
        "Zhuang, Zhenxun and Liu, Mingrui and Cutkosky, Ashok and Orabona, Francesco",
        "Understanding AdamW through Proximal Methods and Scale-Freeness",
        2022,
        "https://arxiv.org/abs/2202.00089",
    ),
}
