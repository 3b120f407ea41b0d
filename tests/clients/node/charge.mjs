// Charges with Stripe's SDK: charge.mjs HOST PORT KEY. Prints the charge, or the error.

import Stripe from "stripe";

const [host, port, idempotencyKey] = process.argv.slice(2);
const stripe = new Stripe("sk_test_1", { host, port, protocol: "http", maxNetworkRetries: 3, telemetry: false });
try {
  const asked = { amount: 1999, currency: "eur", source: "tok_visa" };
  console.log(JSON.stringify(await stripe.charges.create(asked, { idempotencyKey })));
} catch (error) {
  console.log(JSON.stringify({ status: error.statusCode, message: error.message }));
}
// The SDK leaves answers that it repeats unread, and their connections open.
process.exit();
