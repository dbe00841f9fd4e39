// Sets of points to begin with, drawn from seeds and put on the grid.

import {Normals} from "./numpy.js";
import {snap} from "./state.js";

const put = (x, y, label) => [snap(x), snap(y), label];

function ring() {  // three clusters each, in turn around a circle
  const normals = new Normals(3, 1), out = [];
  for (let k = 0; k < 6; k++)
    for (let i = 0; i < 4; i++)
      out.push(put(1.5 * Math.cos(k * Math.PI / 3) + 0.16 * normals.next(), 1.5 * Math.sin(k * Math.PI / 3) + 0.16 * normals.next(), k % 2 ? -1 : 1));
  return out;
}

function disks() {  // CB: a disk in each place of a 3 x 3 grid, with labels at random
  const normals = new Normals(8, 1), labels = [1, -1, 1, -1, -1, 1, 1, -1, -1], out = [];
  labels.forEach((label, k) => {
    for (let i = 0; i < 3; i++) {
      const angle = 2 * Math.PI * normals.uniform(), r = 0.32 * Math.sqrt(normals.uniform());
      out.push(put(1.3 * ((k % 3) - 1) + r * Math.cos(angle), 1.3 * (Math.floor(k / 3) - 1) + r * Math.sin(angle), label));
    }
  });
  return out;
}

function spirals() {
  const out = [];
  for (let i = 0; i < 15; i++) {
    const t = 0.35 + i / 15 * 1.5 * Math.PI, r = 0.3 + 0.34 * t;
    out.push(put(r * Math.cos(t), r * Math.sin(t), 1), put(-r * Math.cos(t), -r * Math.sin(t), -1));
  }
  return out;
}

function moons() {
  const normals = new Normals(5, 2), out = [];
  for (let i = 0; i < 15; i++) {
    const t = Math.PI * (i + 0.5) / 15, noise = () => 0.16 * normals.next();
    out.push(put(1.1 * Math.cos(t) - 0.5 + noise(), 1.1 * Math.sin(t) - 0.3 + noise(), 1), put(0.6 - 1.1 * Math.cos(t) + noise(), 0.35 - 1.1 * Math.sin(t) + noise(), -1));
  }
  return out;
}

function badKkt() {  // LR, Proposition 2.6: a linear predictor is a KKT point with a tiny margin
  const turn = [0, 0.75 * Math.PI, 0.5 * Math.PI + Math.acos(0.125)];
  return turn.map((t) => put(1.5 * Math.cos(t), 1.5 * Math.sin(t), 1));
}

export const PRESETS = {
  xor: {name: "XOR", points: () => [[1, 1, 1], [-1, -1, 1], [1, -1, -1], [-1, 1, -1]], bias: false},
  ring: {name: "six clusters", points: ring, bias: true},
  disks: {name: "CB's disks", points: disks, bias: true},
  spirals: {name: "spirals", points: spirals, bias: true},
  moons: {name: "noisy moons", points: moons, bias: true},
  kkt: {name: "bad KKT point", points: badKkt, bias: false},
};
