"""The pricing problem: max over |v| = 1 of sum_i c_i phi(v . x_i), with a value that is met and a bound that is proved."""
