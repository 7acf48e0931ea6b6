/** Times of lines in few characters; those of one format are equally wide. */

/** The time of day, to a hundredth of a second: they aren't known more precisely. */
export function ofDay(at: number): string {
  const date = new Date(at);
  const [hours, minutes] = [date.getHours(), date.getMinutes()];
  return `${two(hours)}:${two(minutes)}:${seconds(at)}`;
}

/** The date and the time with its zone, as `nbtorchjob logs --timestamps` prints them. */
export function stamp(at: number): string {
  const date = new Date(at);
  const zone = -date.getTimezoneOffset();
  const local = new Date(at + zone * 60_000).toISOString().slice(0, -1);
  const [hours, minutes] = [Math.floor(Math.abs(zone) / 60), Math.abs(zone) % 60];
  return `${local}${zone < 0 ? '-' : '+'}${two(hours)}:${two(minutes)}`;
}

/** How long after the start: "+0:01:02.34". */
export function since(milliseconds: number): string {
  const minutes = Math.floor(milliseconds / 60_000);
  return `+${Math.floor(minutes / 60)}:${two(minutes % 60)}:${seconds(milliseconds)}`;
}

function seconds(milliseconds: number): string {
  const hundredths = Math.floor((milliseconds % 60_000) / 10);
  return `${two(Math.floor(hundredths / 100))}.${two(hundredths % 100)}`;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}
