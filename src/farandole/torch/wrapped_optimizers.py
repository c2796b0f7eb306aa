"""`DistributedOptimizer`; wrapped_optimizers.pyi has the methods that an optimizer has besides those of its class."""

from farandole.torch.optimizer import DistributedOptimizer as DistributedOptimizer
