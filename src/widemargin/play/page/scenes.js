// Guided scenes: a state to begin with, and five sentences.

import {PRESETS} from "./presets.js";
import {fresh} from "./state.js";

const of = (name, more) => fresh(PRESETS[name].points(), {bias: PRESETS[name].bias, ...more});

export const SCENES = [
  {
    name: "First lazy, then rich",
    state: () => of("ring", {width: 200, scale: 40, seed: 1}),
    text: [
      "This network starts 40 times as large as usual, so at first its neurons hardly turn: it trains like a kernel machine.",
      "The solid line settles near a smooth boundary while the dots on the sphere stay where they were drawn.",
      "Then the loss is tiny, the pull of the margin takes over, and the neurons begin to climb the warm peaks.",
      "The solid line bends towards the green dashed one, the best classifier that any network of this kind has.",
      "This is Chizat and Bach's Figure 3, live: two implicit biases in one run, and a proof beside it that says where it must end.",
    ],
  },
  {
    name: "Too narrow",
    state: () => of("ring", {width: 6, scale: 1, seed: 4}),
    text: [
      "Six neurons are all that this network has, and the points need more.",
      "It separates what it can, and its margin rises for a while.",
      "Then it stops well below the bound: its neurons sit on some peaks of the sphere and leave others alone.",
      "Widen it with the slider and watch the share jump; with a hundred neurons some start near every peak.",
      "The bound never moves, because it holds for every width.",
    ],
  },
  {
    name: "The kernel loses",
    state: () => of("disks", {width: 300, scale: 1, seed: 2}),
    text: [
      "Two networks train here from the same directions: one moves both layers, the other its output layer alone.",
      "The second is a kernel machine; the purple lines are its margin and the bound that no output weights of these neurons exceed.",
      "Each is measured in its own norm, and each approaches its own proved bound.",
      "The dotted classifier must bend around every disk with neurons that it did not choose; the dashed one puts few neurons where they count.",
      "Both layers may turn their neurons, and that is the whole difference between the two curves.",
    ],
  },
  {
    name: "Stuck at a bad KKT point",
    state: () => of("kkt", {width: 8, scale: 10, start: "linear", seed: 0}),
    text: [
      "Three points, all with label +1, and no bias: a network of size 1 should be as positive as it can at all three.",
      "All neurons start at the best linear classifier, which does it badly, because two of the points are nearly opposite.",
      "Gradient flow does not leave it: this is a stationary point of the margin problem, with a small fraction of the largest margin.",
      "The sphere shows what is wrong: it is warmest where no dot is. A neuron there would help, so a better network exists.",
      "Set the start to random, and training escapes to the optimum: stationary points need not be good (Telgarsky, Proposition 2.6).",
    ],
  },
  {
    name: "Weight decay finds it too",
    state: () => of("ring", {width: 120, scale: 1, rule: "gd", lr: 0.5, decay: 0.003, seed: 1}),
    text: [
      "Here the network pays for its weights: mean loss plus weight decay.",
      "Such a problem has a least value over networks of every width, and it is certified below, from above and from below.",
      "The curve is the objective of this run; the dashed line is what no network can undercut.",
      "Training comes close although the problem is not convex: the network is wide enough.",
      "With a smaller decay the best network grows and its normalised margin approaches the largest one: weight decay finds the F1 classifier too.",
    ],
  },
];
