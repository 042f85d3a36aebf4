// Steps through a drawing: one `.frame` of each of its SVGs and one sentence of its list at a time, by buttons or arrow keys.
for (const figure of document.querySelectorAll("figure.steps")) {
  const list = figure.querySelector("ol")
  const sentences = [...list.children]
  const last = sentences.length - 1
  const parts = [...figure.querySelectorAll("svg")].map((svg) => [...svg.querySelectorAll(".frame")]).concat([sentences])
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
    at = Math.min(Math.max(step, 0), last)
    for (const each of parts) each.forEach((part, i) => part.classList.toggle("now", i === at))
    place.textContent = `${at + 1} of ${last + 1}`
    // A button that has no more to do keeps the focus: it is not disabled, which would drop it.
    back.setAttribute("aria-disabled", String(at === 0))
    next.textContent = at === last ? "From the start" : "Next"
  }

  back.addEventListener("click", () => show(at - 1))
  next.addEventListener("click", () => show(at === last ? 0 : at + 1))
  controls.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!by) return
    event.preventDefault()
    show(at + by)
  })

  list.setAttribute("aria-live", "polite")
  list.before(controls)
  figure.classList.add("live")
  const opens = Number(list.dataset.opens)
  show(opens < 0 ? last : opens)
}
