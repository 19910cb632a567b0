'use strict';
// A button at each block of code that copies it; what is printed has none.
for (const block of document.querySelectorAll('div.highlight')) {
  if (block.closest('.highlight-text, .highlight-default.printed')) continue;
  const button = document.createElement('button');
  button.className = 'copy';
  button.type = 'button';
  button.textContent = 'Copy';
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(block.querySelector('pre').textContent.trimEnd() + '\n');
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  block.append(button);
}
