// Stands in for an editor's remote server: it outlives the exec that started it, watches the workspace, and runs terminals.
const http = require("http"), fs = require("fs"), os = require("os"), {execFile} = require("child_process");
let changes = 0;
fs.watch("/workspaces/project", () => changes++);
const server = http.createServer((request, response) => {
  if (request.url === "/terminal") {
    const terminal = execFile("script", ["-qec", "tty; id -un; sudo -n id -un", "/dev/null"], (error, out) => response.end(out.replace(/\r|\^[@D]\x08*/g, "").replace(/pts\/\d+/, "pts/N")));
    terminal.stdin.end();
  } else {
    response.end(JSON.stringify({user: os.userInfo().username, home: os.homedir(), changed: changes > 0, agent: process.env.EDITOR_AGENT}));
  }
});
server.listen(0, "127.0.0.1", () => fs.writeFileSync(process.argv[2], String(server.address().port)));
