/** One file of a job as a tab: text, a table, an image, or just its size and a download link. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReactElement } from 'react';

import { type Client, type FilePlace, type Meant, isMeant } from '../model/client';
import { AskedPage } from '../shell/asked';
import { PartBox } from '../shell/part';

import { type Shown, bytesFor, shownOf, sizeOf } from './shown';

export interface FileViewOptions {
  readonly job: Meant;
  readonly name: string;
  readonly place: FilePlace;
  readonly client: Pick<Client, 'file' | 'files' | 'fileUrl'>;
  readonly trans: TranslationBundle;
}

/** Requests the file again whenever its tab comes to the front, or its button is pressed. */
export class FileView extends AskedPage {
  constructor(private readonly options: FileViewOptions) {
    super();
  }

  protected override render(): ReactElement {
    const { client, job, name, place, trans } = this.options;
    return (
      <>
        <div className="jp-nbtorchjob-page-head">
          <h1>{place.path}</h1>
          <div>
            <span>
              {trans.__('node %1 of %2', place.node, name)}
              {this.size !== null && ` · ${sizeOf(this.size, trans)}`}
            </span>
            <button className="jp-nbtorchjob-page-button" onClick={() => void this.refresh()}>
              {trans.__('Refresh')}
            </button>
            <a
              className="jp-nbtorchjob-page-button"
              href={client.fileUrl(job, place)}
              download={place.path.split('/').pop()}
            >
              {trans.__('Download')}
            </a>
          </div>
        </div>
        {this.note && (
          <p className="jp-nbtorchjob-page-note" role="status">
            {this.note}
          </p>
        )}
        {this.body()}
      </>
    );
  }

  shows(job: Meant): boolean {
    return isMeant(this.options.job, job);
  }

  override dispose(): void {
    this.forget();
    super.dispose();
  }

  private body(): ReactElement | null {
    const { place, trans } = this.options;
    const { shown, image } = this;
    const part = { head: [], rows: [], said: [], wrote: [], code: [], charts: [] };
    switch (shown?.kind) {
      case 'image':
        return <img className="jp-nbtorchjob-file-image" src={image} alt={place.path} />;
      case 'table': {
        const [head = [], ...rows] = shown.rows;
        return <PartBox part={{ ...part, title: trans.__('Table'), head, rows }} trans={trans} />;
      }
      case 'text': {
        const wrote = shown.text.replace(/\n$/, '').split('\n');
        return <PartBox part={{ ...part, title: trans.__('Text'), wrote }} trans={trans} />;
      }
      default:
        return null;
    }
  }

  protected async refresh(): Promise<void> {
    const { client, job, place, trans } = this.options;
    const counts = this.begun();
    try {
      // Its size first: the file may have grown, and an image that is too big isn't requested.
      const { files, trouble } = await client.files(job, place.path);
      const same = files.filter(({ path }) => path === place.path);
      // Of the equal files that an ended job's nodes left, only the first node's is listed.
      const file =
        same.find(({ node }) => node === place.node) ?? (trouble[0] ? undefined : same[0]);
      if (!file) {
        throw new Error(trouble[0] ?? trans.__('The file no longer exists.'));
      }
      const limit = bytesFor(file.path, file.size);
      const bytes = limit > 0 ? await client.file(job, place, limit) : new Uint8Array();
      if (!counts()) {
        return;
      }
      this.take(shownOf(file.path, bytes, file.size), bytes, Math.max(file.size, bytes.length));
    } catch (error) {
      if (!counts()) {
        return;
      }
      // What was shown before stays.
      this.note = error instanceof Error ? error.message : String(error);
    }
    this.update();
  }

  private take(shown: Shown, bytes: Uint8Array, size: number): void {
    const { trans } = this.options;
    this.forget();
    [this.shown, this.size] = [shown, size];
    if (shown.kind === 'image') {
      // An <img> runs no scripts of an SVG; a blob opened in its own tab would, with JupyterLab's origin.
      this.image =
        shown.type === 'image/svg+xml'
          ? `data:${shown.type},${encodeURIComponent(new TextDecoder().decode(bytes))}`
          : URL.createObjectURL(new Blob([bytes as BlobPart], { type: shown.type }));
    }
    this.note =
      shown.kind === 'none'
        ? trans.__('This file can’t be previewed. Download it to view it.')
        : shown.kind !== 'image' && !shown.whole
          ? trans.__('Only part of the file is shown. Download it to see all of it.')
          : '';
  }

  private forget(): void {
    URL.revokeObjectURL(this.image);
    this.image = '';
  }

  private shown: Shown | null = null;
  private size: number | null = null;
  private image = '';
  private note = '';
}
