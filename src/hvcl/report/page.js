// Two comforts; without them everything stays readable: all seeds stand below each other, tooltips are the browser's own.
"use strict";

// A choice shows one of its options at a time, behind a row of buttons.
for (const choice of document.querySelectorAll(".choice")) {
  const options = [...choice.querySelectorAll(":scope > .option")];
  if (options.length < 2) continue;
  const bar = document.createElement("div");
  bar.className = "buttons";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", choice.dataset.choice);
  const buttons = options.map((option) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = choice.dataset.choice + " " + option.dataset.option;
    button.addEventListener("click", () => show(option));
    bar.append(button);
    return button;
  });
  const show = (chosen) => {
    options.forEach((option, place) => {
      option.hidden = option !== chosen;
      buttons[place].setAttribute("aria-pressed", String(option === chosen));
    });
  };
  choice.prepend(bar);
  choice.classList.add("active");
  show(options[0]);
}

// Tooltips that appear at once and also by touch, from the titles that are there anyway.
const bubble = document.createElement("div");
bubble.className = "bubble";
bubble.hidden = true;
document.body.append(bubble);
const texts = new Map();
for (const cell of document.querySelectorAll("[title]")) {
  texts.set(cell, cell.title);
  cell.removeAttribute("title");
}
for (const title of document.querySelectorAll("svg .probe title")) {
  texts.set(title.parentElement, title.textContent);
  title.remove();
}
const hide = () => { bubble.hidden = true; };
for (const [target, text] of texts) {
  target.addEventListener("pointerenter", (event) => {
    bubble.textContent = text;
    bubble.hidden = false;
    const { width, height } = bubble.getBoundingClientRect();
    const room = document.documentElement.clientWidth - width - 8;
    bubble.style.left = Math.max(8, Math.min(event.clientX + 14, room)) + "px";
    bubble.style.top = Math.max(8, event.clientY - height - 14) + "px";
  });
  target.addEventListener("pointerleave", hide);
}
addEventListener("scroll", hide, { passive: true });
