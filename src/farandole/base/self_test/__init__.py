"""The report of `farandole test`: its form, its judgement and its text. `worker.observe.self_test` writes it."""
