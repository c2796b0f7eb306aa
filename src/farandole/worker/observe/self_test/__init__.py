"""The workers of `farandole test`: whether collectives compute right on these hosts, and how fast the links are.

The workers run `python -m farandole.worker.observe.self_test`: checks of every collective (`collectives`, `formulas`),
then the links (`pairs`, in the order of `schedule`). Rank 0 sends a `report` to the launcher, which judges (`verdict`)
and shows it (`matrix`); these three, and `schedule`, import neither the native library nor what uses it.
"""
