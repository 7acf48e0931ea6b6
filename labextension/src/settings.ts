/** What users set in the settings editor (`schema/plugin.json`, which has the defaults too). */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

import { PluginIDs } from './ids';

export type Notified = 'all' | 'failures' | 'none';

/** The current settings; the defaults until they are loaded, or if there is no registry. */
export class Settings {
  constructor(registry: ISettingRegistry | null) {
    void registry?.load(PluginIDs.jobs).then(loaded => {
      this.loaded = loaded;
    });
  }

  /** Which jobs' ends are announced. */
  get notifications(): Notified {
    return (this.loaded?.composite.notifications as Notified | undefined) ?? 'all';
  }

  /** The options of the `%%torchjob` line that "Run Cell as Torch Job" adds. */
  get options(): string {
    return (this.loaded?.composite.options as string | undefined) ?? '';
  }

  /** Whether that command asks for the number of nodes and ranks, once per notebook. */
  get asksSize(): boolean {
    return (this.loaded?.composite.askSize as boolean | undefined) ?? true;
  }

  /** Saves these options for that command, and stops it from asking. */
  async askNoSize(options: string): Promise<void> {
    await this.loaded?.set('options', options);
    await this.loaded?.set('askSize', false);
  }

  private loaded: ISettingRegistry.ISettings | null = null;
}
