// Draws the blocks of Mermaid on a page, in the colours of the theme; GitHub draws the same blocks by itself.
const dark = () => {
  const theme = document.body.dataset.theme
  return theme === 'dark' || (theme !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches)
}
const sources = new Map()

async function draw() {
  mermaid.initialize({ startOnLoad: false, theme: dark() ? 'dark' : 'neutral', flowchart: { nodeSpacing: 24, rankSpacing: 36 } })
  for (const [place, source] of sources) {
    place.textContent = source
    place.removeAttribute('data-processed')
  }
  await mermaid.run({ nodes: [...sources.keys()] })
}

addEventListener('DOMContentLoaded', () => {
  for (const block of document.querySelectorAll('.highlight-mermaid')) {
    const place = document.createElement('div')
    sources.set(place, block.textContent)
    block.replaceWith(place)
  }
  draw()
  new MutationObserver(draw).observe(document.body, { attributeFilter: ['data-theme'] })
})
