// A courtesy: the button shows that the form is on its way. A second order is kept away by the token, not by this.
const form = document.querySelector("form");
if (form) {
  const button = form.querySelector("button");
  const label = button.textContent;
  form.addEventListener("submit", () => {
    button.disabled = true;
    button.textContent = button.dataset.sending;
  });
  // Back may show the page just as it was left, with the button disabled.
  addEventListener("pageshow", () => {
    button.disabled = false;
    button.textContent = label;
  });
}
