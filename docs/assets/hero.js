// The slider of the overview: one chart of peak memory for each context length.
for (const figure of document.querySelectorAll("figure.hero")) {
  const slider = figure.querySelector("input")
  const frames = [...figure.querySelectorAll(".frame")]
  slider.addEventListener("input", () => {
    frames.forEach((frame, i) => frame.classList.toggle("now", i === Number(slider.value)))
    slider.setAttribute("aria-valuetext", `${frames[slider.value].dataset.tokens} tokens`)
  })
}
