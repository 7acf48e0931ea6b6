/** What the nodes of a running job use: a line for each node, with a strip for each resource. */

import type { Job, Strip } from '../../model/record';
import { usePage } from '../context';

import { strip as inWords } from './words';

export function Uses({ job }: { job: Job }) {
  const { trans } = usePage();
  const named = job.nodes.asked[1] > 1;
  return job.uses.map(({ node, strips }) => (
    <div key={node} className="jp-nbtorchjob-jobs-use">
      {named && <span className="jp-nbtorchjob-jobs-node">{trans.__('node %1', node)}</span>}
      {strips.map(strip => (
        <StripBox key={strip.of} strip={strip} label={inWords(strip, named ? node : null, trans)} />
      ))}
    </div>
  ));
}

/** Drawn one unit wide per step and one unit high for the whole, then stretched to the available space. */
function StripBox({ strip: { of, parts }, label }: { strip: Strip; label: string }) {
  const { trans } = usePage();
  const words = { CPU: trans.__('CPU'), memory: trans.__('mem'), GPU: trans.__('GPU') };
  const last = parts.length - 1;
  const line = parts.map((part, at) => `${at},${1 - part}`).join(' ');
  return (
    <span className="jp-nbtorchjob-jobs-strip" role="img" aria-label={label}>
      <span aria-hidden>{words[of]}</span>
      <svg viewBox={`0 0 ${last} 1`} preserveAspectRatio="none" aria-hidden>
        <polygon points={`0,1 ${line} ${last},1`} />
        <polyline points={line} />
      </svg>
    </span>
  );
}
