/** The icons of torch jobs. */

import { LabIcon } from '@jupyterlab/ui-components';

import job from '../style/icons/job.svg';
import runCell from '../style/icons/runCell.svg';

export const jobIcon = new LabIcon({ name: 'nbtorchjob:job', svgstr: job });
export const runCellIcon = new LabIcon({ name: 'nbtorchjob:run-cell', svgstr: runCell });
