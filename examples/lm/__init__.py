"""The parts of `train_lm.py`: data, model, training and report."""
