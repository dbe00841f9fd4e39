"""The list of everything that the five papers define, claim, plot or tabulate, and where it is here: docs/claims.md.

    python -c "from widemargin.theory import claims; print(claims.page(), end='')" > docs/claims.md

Theorems and checks register themselves under their ids (`guarantee.THEOREMS`, `inequality.CHECKS`); `TABLE` names the title
of every id, what else implements it, and the tests of it. What is not here says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from .guarantee import THEOREMS
from .inequality import CHECKS

PAPERS = {
    "UH": (26, "ubiquity of 2-homogeneity"),
    "LR": (34, "low-rotation feature selection"),
    "MT": (34, "margin theory of feedforward networks"),
    "BN": (25, "batch-normalised shallow networks"),
    "CB": (32, "implicit bias of wide two-layer networks"),
}


@dataclass(frozen=True)
class Claim:
    """One id. `where`: names below `widemargin` that implement it, theorems and checks not included; `reason` if it is absent."""

    title: str
    where: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()  # "file::test", below tests/
    reason: str = ""


def _claim(title: str, where: str = "", tests: str = "", reason: str = "") -> Claim:
    return Claim(title, tuple(where.split()), tuple(tests.split()), reason)


NETS, RULES, LOSSES = "flows/test_nets.py::test_", "flows/test_rules.py::test_", "flows/test_losses.py::test_"
DATA, F1, FLOW = "data/test_synthetic.py::test_", "margins/test_f1.py::test_", "flows/test_flow.py::test_"

TABLE: dict[str, Claim] = {
    # ------------------------------------------------------------ UH
    "UH-1": _claim(
        "product outer layer",
        "flows.Product",
        f"{NETS}product_laws {NETS}euler",
    ),
    "UH-2": _claim(
        "normalised shallow ReLU network",
        "flows.Normalized",
        f"{NETS}normalized_does_not_see_the_lengths_of_v",
    ),
    "UH-3": _claim(
        "logistic loss, gradient flow",
        "flows.GradientFlow flows.train",
        f"{FLOW}order_of_convergence {FLOW}a_tighter_tolerance_changes_less_than_it_promises",
    ),
    "UH-4": _claim(
        "partial homogeneity and partial margin",
        "flows.Net",
        f"{NETS}homogeneous_of_the_stated_degree_in_the_stated_subset {NETS}sizes_of_every_convention",
    ),
    "UH-5": _claim(
        "smooth margin",
        "flows.losses.psi",
        f"{LOSSES}logistic_sandwiches {LOSSES}exp_sandwiches_and_offsets",
    ),
    "UH-6": _claim(
        "slopes: sandwich and self-bounding",
        "flows.losses.log_G flows.losses.log_Q",
        f"{LOSSES}logistic_slope_at_psi_is_one_minus_the_product"
        " theory/test_check_mirror.py::test_they_hold_on_every_run",
    ),
    "UH-7": _claim(
        "small loss implies margin",
        "",
        "theory/test_mirror.py::test_margin_from_a_small_loss_never_exceeds_the_margin",
    ),
    "UH-8": _claim(
        "unnormalised divergence",
        "theory.mirror.kl theory.mirror.kl_parts theory.mirror.kl_bounds",
        "theory/test_mirror.py::test_the_divergence_is_the_bregman_divergence_of_the_entropy"
        " theory/test_mirror.py::test_the_divergence_splits_into_shape_and_size",
    ),
    "UH-9": _claim(
        "mirror flow of the products",
        "flows.Mirror",
        f"{RULES}the_mirror_flow_is_the_product_flow",
    ),
    "UH-10": _claim(
        "regret of the mirror flow",
        "flows.divergence",
        "flows/test_potentials.py::test_divergence_from_its_definition_and_its_descent"
        " theory/test_check_mirror.py::test_they_hold_on_every_run",
    ),
    "UH-11": _claim(
        "regret with the norm",
        "",
        "theory/test_check_mirror.py::test_they_hold_on_every_run",
    ),
    "UH-12": _claim(
        "budgets of norm and loss",
        "",
        "theory/test_mirror.py::test_budgets_hold_along_flows",
    ),
    "UH-13": _claim(
        "margin from the budgets",
        "",
        "theory/test_mirror.py::test_early_margins_hold_along_flows",
    ),
    "UH-14": _claim(
        "rate of the smooth margin",
        "",
        "theory/test_mirror.py::test_the_rate_of_the_smooth_margin_holds_along_flows",
    ),
    "UH-15": _claim(
        "margin after doubly exponential time",
        "",
        "theory/test_mirror.py::test_late_times_are_monotone_and_never_overflow"
        " theory/test_mirror.py::test_the_steps_of_the_late_bound_hold_along_flows",
    ),
    "UH-16": _claim(
        "early margins for any features (Theorem 3.1)",
        "",
        "theory/test_mirror.py::test_the_theorem_of_product_networks_is_a_composition",
    ),
    "UH-17": _claim(
        "drift of the features",
        "",
        "theory/test_mirror.py::test_features_move_no_more_than_the_bound",
    ),
    "UH-18": _claim(
        "partial margin never falls (Theorem 3.6)",
        "flows.OBSERVERS",
        "flows/test_invariants.py::test_the_normalised_smooth_margin_and_the_norm_grow_once_the_data_is_fitted",
    ),
    "UH-19": _claim(
        "loss to zero, norm to infinity",
        "",
        "theory/test_check_mirror.py::test_they_hold_on_every_run",
    ),
    "UH-20": _claim(
        "distributional F1 margin",
        "margins.f1",
        f"{F1}parity_of_two_bits {F1}the_chain_of_margins",
    ),
    "UH-21": _claim(
        "a good measure among the initial directions",
        "theory.mirror.sample_p_bar theory.mirror.best_p_bar",
        "theory/test_mirror.py::test_a_comparator_is_found_among_random_units",
    ),
    "UH-22": _claim(
        "gradient constants of the shallow network",
        "",
        "theory/test_mirror.py::test_gradient_constants_against_automatic_differentiation",
    ),
    "UH-23": _claim(
        "width, time and error of shallow networks (Theorem 4.1)",
        "",
        "theory/test_mirror.py::test_the_chain_of_the_shallow_network"
        " theory/test_mirror.py::test_the_printed_theorem_of_the_shallow_network",
    ),
    "UH-24": _claim(
        "test error from the margin",
        "",
        "theory/test_generalization.py::test_printed_formulas"
        " theory/test_generalization.py::test_bounds_fall_with_n_and_margin",
    ),
    "UH-25": _claim(
        "k-parity under any marginal",
        "data.parity",
        f"{DATA}parity_marginals {F1}parity_of_an_even_number_of_bits {F1}parity_of_an_odd_number_of_bits_needs_a_bias",
    ),
    "UH-26": _claim(
        "two phases; the second can end, in a flow in closed form",
        "",
        "theory/test_reached.py::test_the_asymptotic_phase_begins_once_and_can_end"
        " theory/test_reached.py::test_a_time_beyond_floating_point_has_no_phase",
    ),
    # ------------------------------------------------------------ LR
    "LR-1": _claim(
        "two-layer network and its initial law",
        "flows.TwoLayer",
        f"{NETS}lr_law",
    ),
    "LR-2": _claim(
        "losses and risk",
        "flows.losses",
        f"{LOSSES}against_decimal_arithmetic",
    ),
    "LR-3": _claim(
        "SGD",
        "flows.SGD",
        f"{RULES}sgd_is_gd_on_the_examples_of_the_step",
    ),
    "LR-4": _claim(
        "gradient flow",
        "flows.GradientFlow",
        f"{FLOW}minimum_norm_clarke_element",
    ),
    "LR-5": _claim(
        "margins of a network",
        "flows.OBSERVERS",
        "flows/test_observe.py::test_numbers_of_the_function",
    ),
    "LR-6": _claim(
        "dual variables",
        "flows.losses.weights",
        f"{LOSSES}weights_are_gradients {LOSSES}sums_of_weights",
    ),
    "LR-7": _claim(
        "2-homogeneity identities",
        "",
        f"{NETS}euler {FLOW}balance_is_conserved theory/test_check_lazy.py::test_they_hold_on_every_run",
    ),
    "LR-8": _claim(
        "global margin",
        "margins.f1",
        f"{F1}the_plane_with_a_bad_kkt_point",
    ),
    "LR-9": _claim(
        "tangent margin",
        "margins.ntk margins.tangent",
        "margins/test_ntk.py::test_intervals_cover_the_margin_of_a_plane_problem"
        " margins/test_ntk.py::test_golden_values_of_the_l2_margin_of_parity",
    ),
    "LR-10": _claim(
        "tangent margins of linear data (Proposition 1.5)",
        "margins.linear_transports",
        "theory/test_lazy.py::test_transports_of_linear_data_by_sampling"
        " margins/test_ntk.py::test_the_transports_of_linear_data",
    ),
    "LR-11": _claim(
        "2-sparse parity (Proposition 1.6)",
        "data.parity margins.parity_transport",
        f"{F1}parity_of_two_bits margins/test_ntk.py::test_golden_values_of_the_parity_transport",
    ),
    "LR-12": _claim(
        "SGD near initialisation (Theorem 2.1)",
        "",
        "theory/test_lazy.py::test_the_theorem_of_sgd",
    ),
    "LR-13": _claim(
        "inequalities along SGD",
        "",
        "theory/test_check_lazy.py::test_they_hold_on_every_run"
        " theory/test_check_lazy.py::test_half_the_pull_near_the_start_is_sharp_enough",
    ),
    "LR-14": _claim(
        "martingale transfer (Lemma B.1)",
        "",
        "theory/test_lazy.py::test_the_martingale_bound_holds_as_often_as_promised",
    ),
    "LR-15": _claim(
        "gradient flow near initialisation (Theorem 2.2)",
        "",
        "theory/test_lazy.py::test_constants_of_gradient_flow",
    ),
    "LR-16": _claim(
        "training error (Lemma 2.3)",
        "",
        "theory/test_lazy.py::test_training_risk_and_movement_along_a_flow"
        " theory/test_reached.py::test_training_error_at_the_width_of_the_lemma",
    ),
    "LR-17": _claim(
        "margin after moving (Lemma 2.4), rebalancing",
        "theory.lazy.rebalance",
        "theory/test_lazy.py::test_constants_of_gradient_flow theory/test_lazy.py::test_rebalancing_keeps_the_function"
        " theory/test_reached.py::test_margin_after_moving_from_a_fit",
    ),
    "LR-18": _claim(
        "margin to test error (Lemma 2.5)",
        "",
        "theory/test_generalization.py::test_printed_formulas"
        " theory/test_generalization.py::test_monte_carlo_complexities_lie_below_the_bounds",
    ),
    "LR-19": _claim(
        "escape from bad KKT points",
        "data.bad_kkt_cones data.bad_kkt_plane flows.kkt_residual",
        f"{DATA}bad_kkt_cones {FLOW}stationary_event_and_kkt_residual {F1}the_plane_with_a_bad_kkt_point",
    ),
    "LR-20": _claim(
        "tangent margin from positive neurons (Lemma A.1)",
        "margins.positive_transport",
        "theory/test_lazy.py::test_positive_transport_by_sampling",
    ),
    "LR-21": _claim(
        "concentration at initialisation (Lemma A.2)",
        "",
        "theory/test_lazy.py::test_bounds_at_the_start_hold_as_often_as_promised",
    ),
    "LR-22": _claim(
        "finite-width comparator (Lemma A.3)",
        "",
        "theory/test_lazy.py::test_the_comparator_is_aligned_as_often_as_promised",
    ),
    "LR-23": _claim(
        "the norm grows (Lemma A.4)",
        "",
        "theory/test_check_lazy.py::test_they_hold_on_every_run"
        " theory/test_verdicts.py::test_a_fit_that_is_undone_is_not_used",
    ),
    "LR-24": _claim(
        "gradient and margin (Lemma A.5)",
        "",
        "theory/test_check_lazy.py::test_they_hold_on_every_run",
    ),
    "LR-25": _claim(
        "abstract potential (Lemma A.6)",
        "flows.growth",
        "flows/test_potentials.py::test_growth_is_at_least_half_the_margin_of_the_comparator"
        " theory/test_selection.py::test_a_potential_that_grows_means_a_margin",
    ),
    "LR-26": _claim(
        "small slopes bound the loss (Lemma B.2)",
        "",
        "theory/test_lazy.py::test_loss_and_derivative",
    ),
    "LR-27": _claim(
        "neural collapse",
        "data.neural_collapse data.check_nc margins.collapse",
        f"{DATA}neural_collapse_satisfies_its_assumption"
        f" {DATA}collapsed_simplex_has_margin_one_third"
        " margins/test_collapse.py::test_generated_cones_are_found_again"
        " margins/test_collapse.py::test_the_best_network_is_at_least_as_good",
    ),
    "LR-28": _claim(
        "margin under neural collapse (Theorem 3.2)",
        "",
        "theory/test_selection.py::test_constants_of_the_theorem_of_collapse"
        " theory/test_check_lazy.py::test_the_threshold_of_the_paper_lets_caught_neurons_go",
    ),
    "LR-29": _claim(
        "scalar networks reach the global margin (Theorem 3.3)",
        "flows.Scalar",
        "theory/test_selection.py::test_scalar_networks_on_a_flow",
    ),
    "LR-30": _claim(
        "ratios of norms",
        "",
        "theory/test_check_lazy.py::test_they_hold_on_every_run",
    ),
    "LR-31": _claim(
        "covering by random directions (Lemma C.1)",
        "",
        "theory/test_selection.py::test_caps_by_sampling_and_the_lower_bound_of_the_lemma"
        " theory/test_selection.py::test_that_many_directions_cover",
    ),
    "LR-32": _claim(
        "Figure 1",
        "papers.lr.figure_1",
        "papers/test_lr.py::test_figure_1_agrees_with_a_loop_written_out"
        " papers/test_lr.py::test_output_layer_training_passed_off_as_both_layers_fails",
    ),
    "LR-33": _claim(
        "Figure 2",
        "papers.lr.figure_2",
        "papers/test_lr.py::test_gradient_flow_reaches_the_golden_margin",
    ),
    "LR-34": _claim(
        "Table 1",
        "papers.lr.table_1",
        "papers/test_lr.py::test_a_tiny_run_writes_everything"
        " papers/test_lr.py::test_a_kernel_passed_off_as_a_margin_row_fails",
    ),
    # ------------------------------------------------------------ MT
    "MT-1": _claim(
        "weakly regularised objective",
        "flows.WeaklyRegularized",
        f"{RULES}the_objective_of_the_path_and_its_gradient",
    ),
    "MT-2": _claim(
        "multi-class margins",
        "margins.multiclass_linear margins.multiclass_f1",
        "margins/test_multiclass.py::test_linear_against_another_solver"
        " margins/test_multiclass.py::test_f1_certificates",
    ),
    "MT-3": _claim(
        "margins as the regularisation vanishes (Theorem 2.1)",
        "flows.WeaklyRegularized optima.path theory.guaranteed_along",
        f"{RULES}the_path_of_a_linear_classifier_ends_at_the_hard_margin"
        f" {RULES}the_path_of_a_two_layer_net_reaches_the_certified_margin"
        " theory/test_regularization.py::test_every_point_of_a_path_has_the_guaranteed_margin",
    ),
    "MT-4": _claim(
        "inequality at finite regularisation",
        "",
        "theory/test_regularization.py::test_minimisers_obey_mt_3_and_4 theory/test_check_particles.py::test_weak_path",
    ),
    "MT-5": _claim(
        "approximate minimisers (Theorem 2.2)",
        "",
        "theory/test_regularization.py::test_smallest_powers_of_theorem_2_2"
        " theory/test_regularization.py::test_approximate_minimisers_keep_their_margin",
    ),
    "MT-6": _claim(
        "two-layer setting",
        "flows.WeaklyRegularized flows.TwoLayer",
        f"{RULES}the_objective_of_the_path_and_its_gradient",
    ),
    "MT-7": _claim(
        "generalisation (Theorem 3.1)",
        "",
        "theory/test_generalization.py::test_no_bound_is_below_the_measured_test_error",
    ),
    "MT-8": _claim(
        "margins by width (Theorem 3.2)",
        "margins.width_margin_curve",
        "margins/test_widths.py::test_the_curve_grows_and_is_flat_from_n",
    ),
    "MT-9": _claim(
        "l1-SVM",
        "margins.f1 margins.frozen",
        f"{F1}a_linear_program_on_a_fine_grid_of_the_plane",
    ),
    "MT-10": _claim(
        "minimum-norm form and dual",
        "margins.f1",
        "margins/test_frozen.py::test_an_independent_linear_program_agrees"
        " theory/test_errata_mt_bn_cb.py::test_mt_5_the_smallest_norm_is_one_over_the_margin",
    ),
    "MT-11": _claim(
        "sparse optimum",
        "margins.prune",
        "margins/test_widths.py::test_pruning_an_optimal_network_keeps_its_margin",
    ),
    "MT-12": _claim(
        "networks and measures (Theorem 3.3)",
        "types.Measure",
        "test_types.py::test_measure_to_balanced_network_halves_the_margin",
    ),
    "MT-13": _claim(
        "kernel margin",
        "margins.f2",
        "margins/test_f2.py::test_an_independent_solver_agrees",
    ),
    "MT-14": _claim(
        "kernel bound (Lemma 3.4)",
        "",
        "theory/test_generalization.py::test_no_bound_is_below_the_measured_test_error"
        " theory/test_generalization.py::test_kernel_complexity_uses_the_exact_trace",
    ),
    "MT-15": _claim(
        "ramp loss and margin bound (Theorem C.1)",
        "theory.generalization.ramp_loss",
        "theory/test_generalization.py::test_ramp_loss theory/test_generalization.py::test_printed_formulas",
    ),
    "MT-16": _claim(
        "Rademacher complexities (Lemmas C.2 to C.5)",
        "theory.generalization.rademacher_monte_carlo",
        "theory/test_generalization.py::test_monte_carlo_complexities_lie_below_the_bounds",
    ),
    "MT-17": _claim(
        "distribution D",
        "data.mt_distribution",
        f"{DATA}mt_distribution {F1}four_points_and_the_distribution_they_stand_for",
    ),
    "MT-18": _claim(
        "gap between l1 and l2 margins (Theorem 3.5)",
        "",
        "theory/test_regularization.py::test_kernel_margin_falls_on_the_xor_law",
    ),
    "MT-19": _claim(
        "kernel margin from the uniform dual (Lemmas 3.6, 3.7)",
        "",
        "theory/test_regularization.py::test_uniform_dual_bounds_the_kernel_margin"
        " theory/test_regularization.py::test_relu_pair_identity",
    ),
    "MT-20": _claim(
        "minimum-norm regression",
        "margins.min_norm_l1 margins.min_norm_l2",
        "margins/test_regression.py::test_the_norm_is_the_quadratic_form_of_the_inverse_kernel",
    ),
    "MT-21": _claim(
        "weakly regularised square loss (Theorem D.3)",
        "flows.WeaklyRegularized",
        f"{RULES}the_path_of_a_regression_ends_near_an_interpolant_of_small_norm"
        " theory/test_regularization.py::test_regression_minimisers_are_short",
    ),
    "MT-22": _claim(
        "regression bounds (Lemmas D.4, D.5)",
        "",
        "theory/test_generalization.py::test_regression_bound_covers_the_loss_of_the_interpolant",
    ),
    "MT-23": _claim(
        "regression gap (Theorem D.6)",
        "data.mt_regression_gap",
        "margins/test_regression.py::test_a_random_neuron_costs_sqrt_n_on_average"
        " theory/test_regularization.py::test_regression_gap_identity",
    ),
    "MT-24": _claim(
        "distributional objective",
        "flows.WGF",
        "theory/test_wasserstein.py::test_constants_bound_what_they_should",
    ),
    "MT-25": _claim(
        "Wasserstein gradient flow",
        "flows.WGF",
        f"{RULES}wgf_moves_particles_by_the_velocity_of_the_objective"
        f" {RULES}heun_is_of_second_order"
        " theory/test_check_particles.py::test_particles_move_along_the_velocity",
    ),
    "MT-26": _claim(
        "perturbed flow",
        "flows.PerturbedWGF",
        f"{RULES}perturbed_wgf_without_noise_is_wgf {RULES}particles_are_born_again_on_the_sphere",
    ),
    "MT-27": _claim(
        "discrete time",
        "flows.PerturbedWGF",
        f"{RULES}the_objective_falls_at_the_rate_of_mt_e7",
    ),
    "MT-28": _claim(
        "particle scheme",
        "flows.PerturbedWGF",
        f"{RULES}weighted_particles_keep_the_total_mass",
    ),
    "MT-29": _claim(
        "time and noise (Theorem 4.3)",
        "",
        "theory/test_wasserstein.py::test_every_step_of_the_proof_holds_at_the_chosen_noise",
    ),
    "MT-30": _claim(
        "inequalities along the perturbed flow (Appendix E)",
        "",
        "theory/test_check_particles.py::test_inequalities_of_the_perturbed_flow",
    ),
    "MT-31": _claim(
        "Figure 1",
        "papers.mt.figure_1",
        "papers/test_mt.py::test_a_tiny_run_writes_everything",
    ),
    "MT-32": _claim(
        "Figure 2",
        "papers.mt.figure_2 papers.mt.weak_decay data.mt_one_dimensional",
        "papers/test_mt.py::test_the_path_reaches_the_certified_margin_and_the_least_objective"
        " papers/test_mt.py::test_verdicts_of_certified_paths_hold_and_fail"
        " data/test_synthetic.py::test_mt_one_dimensional",
    ),
    "MT-33": _claim(
        "Figure 3",
        "papers.mt.figure_3 data.mt_teacher",
        "papers/test_mt.py::test_figure_3_verdicts_hold_fail_and_stay_open data/test_synthetic.py::test_mt_teacher",
    ),
    "MT-34": _claim(
        "Table 1",
        "papers.mt.table_1 flows.rules",
        "papers/test_mt.py::test_plan_has_the_papers_schedules"
        " flows/test_rules.py::test_weight_decay_is_annealed_as_in_the_table",
    ),
    # ------------------------------------------------------------ BN
    "BN-1": _claim(
        "data statistics",
        "flows.BatchNorm",
        f"{NETS}batch_norm_does_not_see_shifts_and_scales_of_the_data",
    ),
    "BN-2": _claim(
        "network and initial law",
        "flows.BatchNorm",
        f"{NETS}batch_norm_law",
    ),
    "BN-3": _claim(
        "gradients and Euler identities",
        "flows.BatchNorm",
        f"{NETS}outputs_and_gradients_agree_with_autograd_of_the_definition"
        f" {NETS}batch_norm_identity_in_the_inner_weights",
    ),
    "BN-4": _claim(
        "SGD and GD",
        "flows.SGD flows.GD",
        "flows/test_train.py::test_the_same_seed_is_the_same_result",
    ),
    "BN-5": _claim(
        "the constant eps_N (Assumption 1.1)",
        "margins.batchnorm",
        "theory/test_normalized.py::test_normaliser_bound margins/test_batchnorm.py::test_eps_N",
    ),
    "BN-6": _claim(
        "margin functions",
        "margins.batchnorm",
        "margins/test_batchnorm.py::test_the_margin_of_the_network_with_the_found_weights",
    ),
    "BN-7": _claim(
        "gamma = gamma_a + gamma_c (Assumption 1.2)",
        "margins.batchnorm",
        "margins/test_batchnorm.py::test_another_solver_agrees"
        " margins/test_batchnorm.py::test_gamma_a_is_the_margin_of_random_features",
    ),
    "BN-8": _claim(
        "dyadic data",
        "data.dyadic",
        f"{DATA}dyadic",
    ),
    "BN-9": _claim(
        "margin of the dyadic data (Proposition 1.1)",
        "",
        "theory/test_normalized.py::test_dyadic_margin margins/test_batchnorm.py::test_dyadic_golden_values",
    ),
    "BN-10": _claim(
        "SGD (Theorem 2.1)",
        "",
        "theory/test_normalized.py::test_derived_constants_satisfy_every_inequality_of_the_proofs",
    ),
    "BN-11": _claim(
        "GD (Theorem 2.2)",
        "",
        "theory/test_normalized.py::test_conventions_of_gradient_descent",
    ),
    "BN-12": _claim(
        "rescaled potential",
        "",
        "theory/test_check_normalized.py::test_potential",
    ),
    "BN-13": _claim(
        "the Sigma norm (Lemma B.1)",
        "",
        "theory/test_normalized.py::test_normaliser_inequalities theory/test_check_normalized.py::test_sigma_norms",
    ),
    "BN-14": _claim(
        "perturbed normalisers (Lemma B.2)",
        "",
        "theory/test_normalized.py::test_perturbation_lemmas",
    ),
    "BN-15": _claim(
        "outputs at initialisation (Lemma C.1)",
        "",
        "theory/test_normalized.py::test_coverage_at_the_start",
    ),
    "BN-16": _claim(
        "weights at initialisation (Lemma C.2)",
        "",
        "theory/test_normalized.py::test_coverage_at_the_start",
    ),
    "BN-17": _claim(
        "perturbed preactivations (Lemma D.1)",
        "",
        "theory/test_normalized.py::test_perturbation_lemmas theory/test_check_normalized.py::test_preactivations",
    ),
    "BN-18": _claim(
        "second-order terms (Lemma D.2)",
        "",
        "theory/test_normalized.py::test_misalignment_on_networks_inside_gamma",
    ),
    "BN-19": _claim(
        "alignment (Lemma D.3); its R >= 8 needs m >= (216 eps_N)^6 / gamma^2 > 10^14 and is never exercised",
        "",
        "theory/test_normalized.py::test_derived_constants_satisfy_every_inequality_of_the_proofs"
        " theory/test_check_normalized.py::test_alignment"
        " theory/test_reached.py::test_the_second_part_of_the_alignment_at_a_width_that_allows_it",
    ),
    "BN-20": _claim(
        "gradient norms (Lemmas E.1, F.3)",
        "",
        "theory/test_check_normalized.py::test_gradient_norms",
    ),
    "BN-21": _claim(
        "perceptron step",
        "",
        "theory/test_check_normalized.py::test_perceptron_argument",
    ),
    "BN-22": _claim(
        "martingale lemmas (E.2 to E.4)",
        "",
        "theory/test_normalized.py::test_martingale_transfer_covers",
    ),
    "BN-23": _claim(
        "Rademacher complexity (Lemmas F.1, F.2)",
        "",
        "theory/test_generalization.py::test_batch_norm_complexity_needs_the_initial_rows",
    ),
    "BN-24": _claim(
        "Figure 1",
        "papers.bn.figure_1 data.cifar_cats_dogs",
        "papers/test_bn.py::test_every_verdict_of_figure_1"
        " margins/test_batchnorm.py::test_adam_never_beats_the_upper_bound"
        " margins/test_batchnorm.py::test_cats_and_dogs",
    ),
    "BN-25": _claim(
        "the trapped manifold",
        "",
        "theory/test_check_normalized.py::test_trapped",
    ),
    # ------------------------------------------------------------ CB
    "CB-1": _claim(
        "the model",
        "flows.TwoLayer",
        f"{NETS}cb_laws {NETS}outputs_and_gradients_agree_with_autograd_of_the_definition",
    ),
    "CB-2": _claim(
        "measures and their projection",
        "types.Measure flows.Net",
        f"{NETS}the_measure_is_the_network",
    ),
    "CB-3": _claim(
        "F1 norm and margin",
        "margins.f1",
        f"{F1}the_balanced_network_has_half_the_margin",
    ),
    "CB-4": _claim(
        "F2 norm and margin",
        "margins.f2",
        "margins/test_f2.py::test_parity_has_the_margin_of_its_eigenvalue",
    ),
    "CB-5": _claim(
        "smooth margin S",
        "flows.losses.soft_margin",
        f"{LOSSES}exp_sandwiches_and_offsets",
    ),
    "CB-6": _claim(
        "gradient flow of S",
        "flows.CB",
        f"{RULES}cb_moves_by_m_times_the_gradient {FLOW}the_flow_on_the_risk_is_the_same_path",
    ),
    "CB-7": _claim(
        "Wasserstein flow of S",
        "flows.CB flows.WGF",
        f"{RULES}cb_reaches_nearly_the_whole_margin_of_a_parity",
    ),
    "CB-8": _claim(
        "normalised forms of the flow",
        "",
        "theory/test_check_ascent.py::test_norms_of_neurons_grow_at_the_rate_of_cb8",
    ),
    "CB-9": _claim(
        "limit of many particles (Theorem 2)",
        "theory.width_limit_error",
        "theory/test_limits.py::test_widths_approach_each_other",
    ),
    "CB-10": _claim(
        "limits maximise the margin (Theorem 3)",
        "flows.GradientFlow flows.OBSERVERS",
        f"{FLOW}wide_networks_reach_the_certified_margin"
        " theory/test_limits.py::test_the_dual_gap_closes_along_the_flow",
    ),
    "CB-11": _claim(
        "limits in width and time (Corollary 4)",
        "flows.GradientFlow",
        f"{FLOW}wide_networks_reach_the_certified_margin",
    ),
    "CB-12": _claim(
        "ReLU networks (Theorem 5)",
        "flows.GradientFlow",
        f"{FLOW}wide_networks_reach_the_certified_margin theory/test_check_ascent.py::test_cone_is_invariant",
    ),
    "CB-13": _claim(
        "ascent over frozen directions",
        "flows.Prop6 flows.Frozen",
        f"{RULES}proposition_6_at_every_step",
    ),
    "CB-14": _claim(
        "its rate (Proposition 6)",
        "",
        f"{RULES}proposition_6_at_every_step theory/test_ascent.py::test_proposition_6_and_norm_growth_at_every_step",
    ),
    "CB-15": _claim(
        "smoothed margin and mirror ascent",
        "",
        "theory/test_check_ascent.py::test_mirror_ascent",
    ),
    "CB-16": _claim(
        "growth of the norm (Lemmas 17, 18)",
        "",
        "theory/test_ascent.py::test_proposition_6_and_norm_growth_at_every_step"
        " theory/test_check_ascent.py::test_norm_growth",
    ),
    "CB-17": _claim(
        "training of the output layer",
        "flows.Prop7",
        f"{RULES}proposition_7_at_every_step",
    ),
    "CB-18": _claim(
        "its rate (Proposition 7)",
        "",
        f"{RULES}proposition_7_at_every_step theory/test_ascent.py::test_proposition_7_at_every_step",
    ),
    "CB-19": _claim(
        "projected interclass distance",
        "margins.projected",
        "margins/test_projected.py::test_the_relaxation_against_another_solver"
        " margins/test_projected.py::test_more_dimensions_keep_more",
    ),
    "CB-20": _claim(
        "test error by projected distance (Theorem 8)",
        "",
        "theory/test_generalization.py::test_projected_distance"
        " theory/test_generalization.py::test_an_order_is_never_shown_as_a_number",
    ),
    "CB-21": _claim(
        "margins by projected distance (Lemma 20)",
        "",
        "theory/test_generalization.py::test_projected_distance"
        " theory/test_generalization.py::test_an_order_is_never_shown_as_a_number",
    ),
    "CB-22": _claim(
        "margin bound (Theorem 22)",
        "",
        "theory/test_generalization.py::test_no_bound_is_below_the_measured_test_error"
        " theory/test_generalization.py::test_the_union_over_margins",
    ),
    "CB-23": _claim(
        "two F1 norms (Proposition 9)",
        "types.Measure",
        "test_types.py::test_half_of_each_atom_makes_a_network_of_unit_size",
    ),
    "CB-24": _claim(
        "optimality certificate",
        "types.Certificate flows.OBSERVERS",
        "flows/test_observe.py::test_no_trajectory_beats_the_certificate_and_no_dual_goes_below_it"
        " theory/test_check_ascent.py::test_certificate_gap_is_not_negative",
    ),
    "CB-25": _claim(
        "smooth margin of the normalised measure",
        "",
        "theory/test_check_ascent.py::test_smooth_margin_never_falls",
    ),
    "CB-26": _claim(
        "limits of smooth margins (Lemmas 13 to 15, 23, 24)",
        "",
        "theory/test_check_ascent.py::test_smooth_minimum",
    ),
    "CB-27": _claim(
        "disks",
        "data.disks",
        f"{DATA}disks",
    ),
    "CB-28": _claim(
        "Figure 1",
        "papers.cb.figure_1",
        "papers/test_cb.py::test_output_layer_in_the_plane_is_noticed papers/test_cb.py::test_files_and_verdicts",
    ),
    "CB-29": _claim(
        "Figure 2",
        "papers.cb.figure_2b papers.cb.figure_2c papers.cb.figure_2d",
        "papers/test_cb.py::test_output_layer_passed_off_as_both_is_noticed"
        " papers/test_cb.py::test_a_wrong_certificate_is_noticed",
    ),
    "CB-30": _claim(
        "Figure 3",
        "papers.cb.figure_3",
        "papers/test_cb.py::test_tangent_and_feature_classifiers_have_their_margins"
        " papers/test_cb.py::test_files_and_verdicts",
    ),
    "CB-31": _claim(
        "Figure 4",
        "papers.cb.figure_4",
        "papers/test_cb.py::test_field_is_the_gradient_of_its_potential"
        " papers/test_cb.py::test_off_the_cone_is_noticed",
    ),
    "CB-32": _claim(
        "insensitivity to step sizes",
        "",
        "theory/test_check_ascent.py::test_step_insensitivity",
    ),
}


def implemented(id: str) -> list[str]:
    """Names below `widemargin` that implement an id: those of the table, the theorems, the checks."""
    theorems = [f"theory.{one.name}" for one in THEOREMS.values() if id in one.claims]
    checks = [f"theory.check ({one.name})" for one in CHECKS.values() if id in one.claims]
    return [*TABLE[id].where, *theorems, *checks]


def page() -> str:
    """docs/claims.md."""
    lines = [
        "# What the papers claim, and where it is",
        "",
        "Written from the code (`widemargin.theory.claims.page()`); a test compares. The ids are our own numbering of what",
        "the five papers define, claim, plot or tabulate ([notation.md](notation.md)). `theory.check (name)` is the check of",
        "that name along a run.",
    ]
    for paper, (count, title) in PAPERS.items():
        lines += ["", f"## {paper}: {title}", "", "| id | what | where | tests |", "|---|---|---|---|"]
        for k in range(1, count + 1):
            id = f"{paper}-{k}"
            claim = TABLE[id]
            where = ", ".join(f"`{name}`" for name in implemented(id))
            where = "; ".join(part for part in (where, claim.reason) if part)
            tests = "<br>".join(f"`{name}`" for name in claim.tests)
            lines.append(f"| {id} | {claim.title} | {where} | {tests} |")
    lines += ["", "## WM: bounds of our own", "", "| id | what | where |", "|---|---|---|"]
    lines += [
        f"| {one.id} | {one.says} | `theory.{one.name}` |" for one in THEOREMS.values() if one.id.startswith("WM-")
    ]
    return "\n".join(lines) + "\n"
