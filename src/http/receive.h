/* SPDX-License-Identifier: Apache-2.0 */
/* receive.h: takes a request from libmicrohttpd's callbacks to the route's handler, and
 * its reply back. */
#pragma once

#include <microhttpd.h>

/* MHD_AccessHandlerCallback and MHD_RequestCompletedCallback; `cls` is the
 * http_thread. */
enum MHD_Result receive_handle(void *cls, struct MHD_Connection *connection,
                               const char *url, const char *method, const char *version,
                               const char *upload_data, size_t *upload_data_size,
                               void **req_cls);
void receive_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
                       enum MHD_RequestTerminationCode code);
