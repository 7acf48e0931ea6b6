// Rspack's default ids of modules are hashed from absolute paths (2.2): two checkouts would give two wheels.
module.exports = { optimization: { moduleIds: "natural" } };
