// Shows only the errors that have the typed words, in their message, id or explanation.
document.addEventListener("DOMContentLoaded", () => {
  const page = document.querySelector("#what-the-errors-mean");
  if (!page) return;
  const field = document.createElement("input");
  Object.assign(field, { type: "search", className: "find-error", placeholder: "Find a message or an id" });
  field.setAttribute("aria-label", field.placeholder);
  const sections = [...page.querySelectorAll(":scope > section")];
  const texts = new Map();
  for (const row of page.querySelectorAll(":scope > section tbody tr")) {
    const ids = [...row.querySelectorAll("[id]")].map((each) => each.id);
    texts.set(row, `${row.textContent} ${ids.join(" ")}`.toLowerCase());
  }
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const [row, text] of texts) row.hidden = !words.every((word) => text.includes(word));
    for (const section of sections) {
      section.hidden = field.value.trim() !== "" && !section.querySelector("tbody tr:not([hidden])");
    }
  });
  page.querySelector("h1").after(field);
});
