"""The report of `farandole test`: its data, its verdict and its text. `worker.observe.self_test` writes it."""
