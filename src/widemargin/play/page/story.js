// The guided scenes: a button for each, and its sentences one after the other.

import {SCENES} from "./scenes.js";

export class Story {
  constructor(act) {  // act(state): the page takes the state of a scene
    this.get = (id) => document.getElementById(id);
    this.act = act;
    SCENES.forEach((scene, k) => {
      const button = Object.assign(document.createElement("button"), {type: "button", textContent: scene.name});
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => this.begin(k));
      this.get("scenes").append(button);
    });
    this.get("story-next").addEventListener("click", () => this.turn(1));
    this.get("story-back").addEventListener("click", () => this.turn(-1));
    this.get("story-close").addEventListener("click", () => { this.get("story").hidden = true; this.pressed(-1); });
  }

  begin(k) {
    Object.assign(this, {k, line: 0});
    this.act(SCENES[k].state());
    this.pressed(k);
    this.turn(0);
  }

  pressed(k) { [...this.get("scenes").children].forEach((one, i) => one.setAttribute("aria-pressed", String(i === k))); }

  turn(by) {
    const {name, text} = SCENES[this.k];
    this.line = Math.min(Math.max(this.line + by, 0), text.length - 1);
    this.get("story").hidden = false;
    this.get("story-title").textContent = name;
    this.get("story-text").textContent = text[this.line];
    this.get("story-place").textContent = `${this.line + 1} of ${text.length}`;
    this.get("story-back").disabled = this.line === 0;
    this.get("story-next").disabled = this.line === text.length - 1;
  }
}
