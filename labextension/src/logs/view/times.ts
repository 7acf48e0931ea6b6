/** Times of lines in few characters, all of one kind equally wide. */

/** The time of day, to a hundredth of a second: more isn't known. */
export function ofDay(at: number): string {
  const date = new Date(at);
  const [hours, minutes] = [date.getHours(), date.getMinutes()];
  return `${two(hours)}:${two(minutes)}:${seconds(at)}`;
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
