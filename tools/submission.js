// Insert GPU and dates below the title, drop other GPUs' conditions, and their tabs from
// sets with a tab of this GPU, and remove links to other pages, which are local paths.
([gpu, keepReported, title, subject]) => {
    document.title = title
    const line = document.createElement("p")
    line.className = "status"
    line.textContent = subject
    document.querySelector("article h1").after(line)
    const isOurs = label => label.textContent.trim() === gpu
    const isKept = label =>
        isOurs(label) || (keepReported && label.textContent.trim().endsWith("reported"))
    for (const set of document.querySelectorAll(".tabbed-set")) {
        const every = selector => [...set.querySelectorAll(`:scope > ${selector}`)]
        const labels = every(".tabbed-labels > label")
        const blocks = every(".tabbed-content > .tabbed-block")
        if (!labels.some(isOurs)) continue
        labels.forEach((label, i) => {
            if (!isKept(label)) [label, blocks[i]].forEach(dropped => dropped.remove())
        })
        if (!keepReported) set.querySelector(":scope > .tabbed-labels").remove()
    }
    for (const line of document.querySelectorAll("details.provenance > p"))
        if (line.textContent.includes(", driver ") && !line.textContent.includes(`: ${gpu}, `))
            line.remove()
    for (const link of document.querySelectorAll("a[href]"))
        if (!link.matches('[href^="#"]')) link.replaceWith(...link.childNodes)
}
