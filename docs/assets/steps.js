// Steps through a drawing: one `.frame` of its SVG and one sentence of its list at a time, by buttons or arrow keys.
for (const figure of document.querySelectorAll("figure.steps")) {
  const frames = [...figure.querySelectorAll(".frame")]
  const sentences = [...figure.querySelectorAll("ol > li")]
  let at = 0

  const controls = document.createElement("div")
  controls.className = "controls"
  const [back, next] = ["Back", "Next"].map((word) => {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = word
    return button
  })
  const place = document.createElement("span")
  controls.append(back, next, place)

  function show(step) {
    at = Math.min(Math.max(step, 0), frames.length - 1)
    for (const parts of [frames, sentences]) parts.forEach((part, i) => part.classList.toggle("now", i === at))
    place.textContent = `${at + 1} of ${frames.length}`
    // A button that has no more to do keeps the focus: it is not disabled, which would drop it.
    back.setAttribute("aria-disabled", String(at === 0))
    next.setAttribute("aria-disabled", String(at === frames.length - 1))
  }

  back.addEventListener("click", () => show(at - 1))
  next.addEventListener("click", () => show(at + 1))
  controls.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!by) return
    event.preventDefault()
    show(at + by)
  })

  const list = figure.querySelector("ol")
  list.setAttribute("aria-live", "polite")
  list.before(controls)
  figure.classList.add("live")
  show(0)
}
