/** What users set in the settings editor (`schema/plugin.json`, which has the defaults too). */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

import { PluginIDs } from './ids';

export type Notified = 'all' | 'failures' | 'none';

/** The settings as they are now; the defaults until they are loaded, or where nothing loads them. */
export class Settings {
  constructor(registry: ISettingRegistry | null) {
    void registry?.load(PluginIDs.jobs).then(loaded => {
      this.loaded = loaded;
    });
  }

  /** The ends of which jobs are told. */
  get notifications(): Notified {
    return (this.loaded?.composite.notifications as Notified | undefined) ?? 'all';
  }

  /** The options of the `%%torchjob` line that "Run Cell as Torch Job" adds. */
  get options(): string {
    return (this.loaded?.composite.options as string | undefined) ?? '';
  }

  private loaded: ISettingRegistry.ISettings | null = null;
}
