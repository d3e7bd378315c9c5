// Shows the definition of a word beside it: to the mouse, to the keyboard and to a finger.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  let shown = null;
  const hide = () => {
    shown = null;
    tip.hidden = true;
  };
  const show = (term) => {
    const text = term && document.getElementById(term.getAttribute("aria-describedby"));
    if (!text) return hide();
    shown = term;
    tip.textContent = text.textContent;
    tip.hidden = false;
    const box = term.getBoundingClientRect(), own = tip.getBoundingClientRect(), edge = 8;
    const left = Math.max(edge, Math.min(box.left, document.documentElement.clientWidth - own.width - edge));
    const below = box.bottom + edge + own.height < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? box.bottom + edge : Math.max(edge, box.top - own.height - edge)}px`;
  };
  document.addEventListener("mouseover", (event) => show(event.target.closest(".term")));
  document.addEventListener("focusin", (event) => show(event.target.closest(".term")));
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", () => show(shown === document.activeElement ? shown : null), { passive: true });
})();
