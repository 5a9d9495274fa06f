// What an editor runs for each forwarded port: standard input and output become a connection in the container.
const s = require("net").connect(Number(process.argv[2]), "127.0.0.1");
process.stdin.pipe(s, {end: false}); s.pipe(process.stdout); s.on("close", () => process.exit(0));
