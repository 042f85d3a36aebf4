// Insert GPU and dates below the title, drop other GPUs' conditions, and their tabs from
// sets with a tab of this GPU, drop reported tabs unless `keepReported`, and remove links
// to other pages, which are local paths. Tabs that an answer's author wrote stay: only
// generated ones have provenance or are in a box of claims. Return the pages whose answers
// are left out, and the addresses of images that did not load.
([gpu, keepReported, title, subject]) => {
    document.title = title
    const line = document.createElement("p")
    line.className = "status"
    line.textContent = subject
    document.querySelector("article h1").after(line)
    const isOurs = label => label.textContent.trim() === gpu
    const isReported = label => label.textContent.trim().endsWith("reported")
    for (const set of document.querySelectorAll(".tabbed-set")) {
        const every = selector => [...set.querySelectorAll(`:scope > ${selector}`)]
        const sources = every(".tabbed-content > .tabbed-block > .provenance")
        if (!sources.length && !set.closest("details.claims")) continue
        const labels = every(".tabbed-labels > label")
        const blocks = every(".tabbed-content > .tabbed-block")
        const hasOurs = labels.some(isOurs)
        labels.forEach((label, i) => {
            const isDropped = isReported(label) ? !keepReported : hasOurs && !isOurs(label)
            if (isDropped) [label, blocks[i]].forEach(dropped => dropped.remove())
        })
        if (hasOurs && !keepReported) set.querySelector(":scope > .tabbed-labels").remove()
        if (labels.every(label => !label.isConnected) && !hasOurs) set.replaceWith("not measured")
    }
    for (const line of document.querySelectorAll("details.provenance > p"))
        if (line.textContent.includes(", driver ") && !line.textContent.includes(`: ${gpu}, `))
            line.remove()
    const missing = [...document.querySelectorAll("p.status")]
        .filter(status => status.textContent.startsWith("not measured yet"))
        .map(status => status.previousElementSibling.querySelector("a[href]").getAttribute("href"))
    for (const link of document.querySelectorAll("a[href]"))
        if (!link.matches('[href^="#"], [href^="http"]')) link.replaceWith(...link.childNodes)
    const images = [...document.images].filter(image => !image.naturalWidth)
    return [missing, images.map(image => image.getAttribute("src"))]
}
