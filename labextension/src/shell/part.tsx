/** A part of a page: a title, and a table, sentences, lines, code or charts below it. */

import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { memo, useEffect, useState } from 'react';

import type { Part } from '../model/record';

const COPIED_MS = 2000;

interface PartProps {
  readonly part: Part;
  readonly trans: TranslationBundle;
}

export function PartBox({ part, trans }: PartProps) {
  const { title, head, rows, said, wrote, code, charts } = part;
  const text = code.map(([, span]) => span).join('') || wrote.join('\n');
  return (
    <section>
      <div className="jp-nbtorchjob-page-title">
        <h2>{title}</h2>
        {text && <CopyButton text={text} title={title} trans={trans} />}
      </div>
      {charts.map(({ svg, title, width, height }) => (
        <img
          key={title}
          className="nbtorchjob-chart"
          src={`data:image/svg+xml,${encodeURIComponent(svg)}`}
          alt={title}
          width={width}
          height={height}
        />
      ))}
      {rows.length > 0 && <Table head={head} rows={rows} title={title} />}
      {said.map((sentence, index) => (
        <p key={index}>{sentence}</p>
      ))}
      {wrote.length > 0 && <pre tabIndex={0}>{wrote.join('\n')}</pre>}
      {code.length > 0 && <Code code={code} />}
    </section>
  );
}

function Table({ head, rows, title }: Pick<Part, 'head' | 'rows' | 'title'>) {
  return (
    <div className="jp-nbtorchjob-page-table" role="region" aria-label={title} tabIndex={0}>
      <table>
        {head.length > 0 && (
          <thead>
            <tr>
              {head.map((text, index) =>
                text ? (
                  <th key={index} scope="col">
                    {text}
                  </th>
                ) : (
                  <td key={index} />
                )
              )}
            </tr>
          </thead>
        )}
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((text, at) =>
                at === 0 ? (
                  <th key={at} scope="row">
                    {text}
                  </th>
                ) : (
                  <td key={at}>{text}</td>
                )
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Perhaps thousands of spans: rendered again only when they have changed. */
const Code = memo(
  function Code({ code }: Pick<Part, 'code'>) {
    return (
      <pre tabIndex={0}>
        {code.map(([kind, text], index) =>
          kind ? (
            <span key={index} data-kind={kind}>
              {text}
            </span>
          ) : (
            text
          )
        )}
      </pre>
    );
  },
  (before, after) => JSON.stringify(before) === JSON.stringify(after)
);

function CopyButton({
  text,
  title,
  trans
}: Omit<PartProps, 'part'> & { text: string; title: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const alarm = copied ? setTimeout(() => setCopied(false), COPIED_MS) : undefined;
    return () => clearTimeout(alarm);
  }, [copied]);
  const copy = () => {
    Clipboard.copyToSystem(text);
    setCopied(true);
  };
  return (
    <button
      className="jp-nbtorchjob-page-button"
      aria-label={copied ? undefined : trans.__('Copy: %1', title)}
      onClick={copy}
    >
      {copied ? trans.__('Copied') : trans.__('Copy')}
    </button>
  );
}
